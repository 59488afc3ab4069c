// Replaces fsync() in bert_qa for tests. The shell command in AT_FSYNC runs once, before a model's
// file is synced. So a test can simulate a slow disk, a kill, or a change of the folder at this
// time.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

extern "C" int fsync(int fd) {
  const char* const command = std::getenv("AT_FSYNC");
  if (command != nullptr) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    const std::string_view name(path.data(), length > 0 ? length : 0);
    if (name.find("/.model.safetensors.tmp.") != name.npos) {
      const std::string once(command);
      ::unsetenv("AT_FSYNC");
      [[maybe_unused]] const int code = std::system(once.c_str());
    }
  }
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

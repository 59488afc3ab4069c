#include "bert_qa/text/text_file.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace bert_qa {
namespace {

// An open regular file.
class RegularFile {
 public:
  // Without O_NONBLOCK, open() would block on a pipe without a writer.
  explicit RegularFile(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) refuse_system(errno == ENOENT ? "check the path" : "");
    struct stat status {};
    if (::fstat(fd_, &status) != 0) refuse_system();
    if (S_ISDIR(status.st_mode)) refuse("it is a folder", "name a file in it");
    if (!S_ISREG(status.st_mode)) refuse("it is not a regular file");
    bytes_ = static_cast<size_t>(status.st_size);
  }
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;
  ~RegularFile() { close(); }

  std::string read() {
    std::string text(bytes_, '\0');
    for (size_t at = 0; at < text.size();) {
      const ssize_t got = ::read(fd_, text.data() + at, text.size() - at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse_system();
      if (got == 0) text.resize(at);  // the file was truncated
      at += static_cast<size_t>(got);
    }
    return text;
  }

 private:
  [[noreturn]] void refuse(std::string cause, std::string hint = {}) {
    close();  // the destructor does not run after an exception in the constructor
    throw fsdp::IoError(fsdp::ExitCode::kIoError, {.what = "cannot read the file",
                                                   .where = path_.string(),
                                                   .cause = std::move(cause),
                                                   .hint = std::move(hint)});
  }
  [[noreturn]] void refuse_system(std::string hint = {}) {
    refuse(std::generic_category().message(errno), std::move(hint));
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  const std::filesystem::path path_;
  int fd_;
  size_t bytes_ = 0;
};

}  // namespace

std::string read_text(const std::filesystem::path& path) { return RegularFile(path).read(); }

void require_readable(const std::filesystem::path& path) { RegularFile opened(path); }

}  // namespace bert_qa

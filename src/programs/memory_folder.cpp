#include "memory_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <system_error>

namespace fsdp {
namespace {

void remove_quietly(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

// Waits until the launcher has ended, and then removes the folder. Runs in a process of its own
// session, so that signals to the launcher's group do not end it.
[[noreturn]] void remove_at_the_end(const std::filesystem::path& folder, int alive) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  // The standard streams are closed, too, so that a reader of the launcher's output sees its end.
  for (int fd = 0; fd < 1024; ++fd) {
    if (fd != alive) close(fd);
  }
  char byte = 0;
  while (read(alive, &byte, 1) < 0) {
  }
  remove_quietly(folder);
  _exit(0);
}

}  // namespace

MemoryFolder::MemoryFolder() {
  std::string name = fmt::format("/dev/shm/fsdp-memory-{}-XXXXXX", getuid());
  if (mkdtemp(name.data()) == nullptr) return;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    remove_quietly(name);
    return;
  }
  // The process is a grandchild, so that the launcher does not wait for it.
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    if (fork() == 0) remove_at_the_end(name, ends[0]);
    _exit(0);
  }
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  alive_ = ends[1];
  path_ = name;
}

MemoryFolder::~MemoryFolder() {
  if (path_.empty()) return;
  remove_quietly(path_);
  close(alive_);
}

}  // namespace fsdp

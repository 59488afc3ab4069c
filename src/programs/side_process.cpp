#include "side_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <exception>
#include <utility>

namespace fsdp {
namespace {

constexpr int kMostDescriptors = 1024;

}  // namespace

Descriptor start_side_process(const std::vector<int>& kept,
                              const std::function<void(const std::function<void()>& wait)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  // The process is a grandchild, so that the launcher does not wait for it.
  const pid_t child = fork();
  if (child < 0) return {};
  if (child > 0) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status == 0 ? std::move(writer) : Descriptor();
  }
  const pid_t grandchild = fork();
  if (grandchild != 0) _exit(grandchild < 0 ? 1 : 0);
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  for (int fd = 0; fd < kMostDescriptors; ++fd) {
    if (fd != reader.get() && std::ranges::find(kept, fd) == kept.end()) close(fd);
  }
  try {
    body([&] {
      char byte = 0;
      while (read(reader.get(), &byte, 1) < 0) {
      }
    });
  } catch (const std::exception&) {
    _exit(1);
  }
  _exit(0);
}

}  // namespace fsdp

#include "comm/process_end.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>

namespace fsdp {

std::string describe_end(int rank, int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const char* name = sigabbrev_np(signal);
    return fmt::format("rank {} was killed by signal {} (SIG{})", rank, signal,
                       name != nullptr ? name : "?");
  }
  const int code = WEXITSTATUS(wait_status);
  if (code == 0) return fmt::format("rank {} left early with code 0", rank);
  return fmt::format("rank {} ended with code {}", rank, code);
}

}  // namespace fsdp

#include "comm/job/process_end.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp {

bool is_fault_of_program(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return false;
  switch (WTERMSIG(wait_status)) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      return true;
    default:
      return false;
  }
}

bool needs_change(int code) {
  switch (static_cast<ExitCode>(code)) {
    case ExitCode::kUsage:
    case ExitCode::kCorruptData:
    case ExitCode::kInternal:
    case ExitCode::kCannotCreate:
    case ExitCode::kConfiguration:
      return true;
    default:
      return false;
  }
}

std::string describe_end(int rank, int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    const char* name = sigabbrev_np(signal);
    return fmt::format("rank {} was killed by signal {} (SIG{})", rank, signal,
                       name != nullptr ? name : "?");
  }
  const int code = WEXITSTATUS(wait_status);
  // Exit code 0 is an error as well if other ranks still need this rank.
  if (code == 0) return fmt::format("rank {} left early with code 0", rank);
  return fmt::format("rank {} ended with code {}", rank, code);
}

std::string hint_for_end(int rank, int wait_status, bool out_of_memory, bool is_shown) {
  if (out_of_memory) {
    return fmt::format(
        "use fewer ranks on this host, a smaller batch or --recompute: the host or the job's "
        "cgroup is out of memory, and the kernel killed rank {} (see dmesg); a restart alone is "
        "likely to end the same way",
        rank);
  }
  const std::string hint =
      is_shown ? "see the error above" : fmt::format("see what rank {} printed", rank);
  if (is_fault_of_program(wait_status)) {
    return hint +
           "; the program is at fault: look at its core dump, run it in a debugger, or build it "
           "with -fsanitize=address; a restart alone is likely to end the same way";
  }
  const int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
  if (needs_change(code)) return hint + "; a restart alone is likely to end the same way";
  if (code == static_cast<int>(ExitCode::kIoError)) {
    return hint + ", free space or check the path, then restart the job";
  }
  return hint + ", then restart the job";
}

}  // namespace fsdp

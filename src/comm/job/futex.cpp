#include "comm/job/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace fsdp {

void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen,
                std::chrono::microseconds at_most) {
  // FUTEX_PRIVATE_FLAG is not set, because ranks may be processes. Errors (another value, a signal,
  // the end of the time) are ignored, because callers check their own condition again.
  const timespec limit{.tv_sec = at_most.count() / 1'000'000,
                       .tv_nsec = at_most.count() % 1'000'000 * 1000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fsdp

#include "simulator/guarded_memory.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <stdexcept>
#include <string_view>

#include "base/bytes.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kReserved = int64_t{2} << 30;
constexpr int64_t kPage = 4096;

struct sigaction before_ours;

void say(std::string_view text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

// Prints the code position and restores the earlier handler. After the return the access faults
// again, and the earlier handler runs.
void on_fault(int number, siginfo_t* info, void* /*context*/) {
  if (GuardedMemory::instance().holds(info->si_addr)) {
    say("the host touched device memory, where no work of a stream runs:\n");
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  }
  sigaction(number, &before_ours, nullptr);
}

}  // namespace

GuardedMemory& GuardedMemory::instance() {
  static GuardedMemory* const memory = new GuardedMemory;  // buffers may outlive all else
  return *memory;
}

GuardedMemory::GuardedMemory() : ranges_(0, kReserved, kPage) {
  void* const reserved =
      mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) throw std::runtime_error("no address space for guarded memory");
  begin_ = static_cast<std::byte*>(reserved);
}

bool GuardedMemory::holds(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  return at >= begin_ && at < begin_ + kReserved;
}

void GuardedMemory::watch() {
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_sigaction == on_fault) return;
  before_ours = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  // Uses the alternate stack if one exists, because the fault may be a stack overflow.
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

Buffer GuardedMemory::allocate(int64_t bytes) {
  if (bytes == 0) return {};
  const int64_t whole = round_up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  const int64_t used_before = used();
  const std::optional<int64_t> offset = ranges_.take(whole);
  if (!offset) throw std::runtime_error("guarded memory is used up");
  taken_.emplace(*offset, whole);
  // Open memory reaches up to used(). So if it is open now, the new pages beyond the old end must
  // be opened.
  if (open_ > 0) protect(used_before, used(), PROT_READ | PROT_WRITE);
  return {begin_ + *offset, bytes, [this, at = *offset](void* /*data*/) { give_back(at); }};
}

// Drops the pages, so that the next allocation of the range is zeroed.
void GuardedMemory::give_back(int64_t offset) {
  const std::lock_guard lock(mutex_);
  const int64_t used_before = used();
  const auto range = taken_.find(offset);
  madvise(begin_ + offset, static_cast<size_t>(range->second), MADV_DONTNEED);
  ranges_.give_back(offset, range->second);
  taken_.erase(range);
  if (open_ > 0) protect(used(), used_before, PROT_NONE);
}

void GuardedMemory::protect(int64_t from, int64_t to, int access) const {
  if (from >= to) return;
  if (mprotect(begin_ + from, static_cast<size_t>(to - from), access) != 0) {
    throw std::runtime_error("mprotect of guarded memory failed");
  }
}

void GuardedMemory::open() {
  const std::lock_guard lock(mutex_);
  if (open_++ == 0) protect(0, used(), PROT_READ | PROT_WRITE);
}

void GuardedMemory::close() {
  const std::lock_guard lock(mutex_);
  if (--open_ == 0) protect(0, used(), PROT_NONE);
}

}  // namespace fsdp::testing

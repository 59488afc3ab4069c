#include "support/sim/guarded_memory.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string_view>

namespace fsdp::testing {
namespace {

constexpr int64_t kReserved = int64_t{2} << 30;
constexpr int64_t kPage = 4096;

struct sigaction before_ours;

void say(std::string_view text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

// Prints, and hands the signal on to who had it before, at the access that comes again.
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

GuardedMemory::GuardedMemory() {
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
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

Buffer GuardedMemory::allocate(int64_t bytes) {
  if (bytes == 0) return {};
  const int64_t whole = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  std::vector<std::byte*>& free = free_[whole];
  std::byte* place = nullptr;
  if (!free.empty()) {
    place = free.back();
    free.pop_back();
  } else {
    if (used_ + whole > kReserved) throw std::runtime_error("guarded memory is used up");
    place = begin_ + used_;
    used_ += whole;
    if (open_ > 0) mprotect(place, static_cast<size_t>(whole), PROT_READ | PROT_WRITE);
  }
  return {place, bytes,
          [this, whole](void* data) { give_back(static_cast<std::byte*>(data), whole); }};
}

// The next who takes it finds zeros.
void GuardedMemory::give_back(std::byte* begin, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  madvise(begin, static_cast<size_t>(bytes), MADV_DONTNEED);
  free_[bytes].push_back(begin);
}

void GuardedMemory::protect(bool readable) {
  if (used_ == 0) return;
  const int access = readable ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mprotect(begin_, static_cast<size_t>(used_), access) != 0) {
    throw std::runtime_error("mprotect of guarded memory failed");
  }
}

void GuardedMemory::open() {
  const std::lock_guard lock(mutex_);
  if (open_++ == 0) protect(true);
}

void GuardedMemory::close() {
  const std::lock_guard lock(mutex_);
  if (--open_ == 0) protect(false);
}

}  // namespace fsdp::testing

#include "runtime/write_guard.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {

// The content of a view: the read-only pages of the file (kShared), a private copy that is being
// made (kChanging), or the finished private copy (kPrivate).
enum class Shown : uint32_t { kShared, kChanging, kPrivate };

// The entry of one view in the table. The signal handler may read the entry at any time, so it is
// never freed. The other members are valid while `begin` is not null.
struct GuardEntry {
  std::atomic<std::byte*> begin;  // null: the entry maps nothing
  FilePages pages;
  std::atomic<Shown> shown;
  std::atomic<std::byte*> first_write;
  bool taken = false;  // guarded by table_mutex
};

namespace {

static_assert(std::atomic<std::byte*>::is_always_lock_free);
static_assert(std::atomic<Shown>::is_always_lock_free);

constexpr size_t kEntries = 16'384;

// There is one table per process, because a process has one action for SIGSEGV.
std::array<GuardEntry, kEntries> table;
std::atomic<size_t> used_entries{0};  // entries at this index and above were never used
std::mutex table_mutex;
bool installed = false;
struct sigaction previous;

// Maps the entry's pages over the existing mapping at `at`, in one step: the addresses are never
// unmapped.
bool show(const GuardEntry& entry, std::byte* at, int protection, int sharing) {
  const FilePages& pages = entry.pages;
  return mmap(at, pages.bytes, protection, sharing | MAP_FIXED | MAP_NORESERVE, pages.file,
              pages.offset) != MAP_FAILED;
}

bool is_write([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWriteBit = 2;  // write bit of a page fault's error code
  return (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
#else
  return true;  // the pages are readable, so the access was a write
#endif
}

// Runs in the signal handler. It takes no lock. It reads only atomics, and members that are valid
// while `begin` is not null.
GuardEntry* find_entry(const std::byte* address) {
  const size_t used = used_entries.load(std::memory_order_acquire);
  for (size_t i = 0; i < used; ++i) {
    const std::byte* begin = table[i].begin.load(std::memory_order_acquire);
    if (begin != nullptr && address >= begin && address < begin + table[i].pages.bytes) {
      return &table[i];
    }
  }
  return nullptr;
}

// Replaces the view by a private, writable copy of its pages. Returns false if mmap fails. One mmap
// call replaces all pages, so other threads can read the pages at any time.
bool make_writable(GuardEntry& entry, std::byte* address) {
  Shown expected = Shown::kShared;
  if (entry.shown.compare_exchange_strong(expected, Shown::kChanging)) {
    entry.first_write.store(address);
    // The code uses the system call instead of mmap(). The thread sanitizer would treat mmap() as a
    // write to all pages, and would report a race with threads that read the pages.
    const FilePages& pages = entry.pages;
    const bool done =
        syscall(SYS_mmap, entry.begin.load(), pages.bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pages.file, pages.offset) != -1;
    entry.shown.store(done ? Shown::kPrivate : Shown::kShared);
    return done;
  }
  // Another thread is already making the copy, so wait until the copy is mapped. The instruction
  // that faulted then runs again. If the other thread's mmap failed, this instruction faults again.
  while (entry.shown.load() == Shown::kChanging) sched_yield();
  return true;
}

// Passes the signal to the former handler, or to the system.
void hand_on(int signal, siginfo_t* info, void* context) {
  const bool by_instruction = info->si_code > 0;  // false if the signal was sent by a process
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler == SIG_IGN && !by_instruction) {
    return;
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    // Restore the default action, which ends the process. If an instruction caused the signal, it
    // runs again and faults again. If another process or raise() sent the signal, it must be raised
    // again.
    struct sigaction fatal {};
    fatal.sa_handler = SIG_DFL;
    sigaction(signal, &fatal, nullptr);
    if (!by_instruction) raise(signal);
  } else {
    previous.sa_handler(signal);
  }
}

// Handles SIGSEGV. It calls only async-signal-safe functions and restores errno for the interrupted
// code.
void on_fault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  auto* const address = static_cast<std::byte*>(info->si_addr);
  GuardEntry* entry = nullptr;
  // Only a write to a page that is mapped read-only (SEGV_ACCERR) can be a guarded write.
  if (info->si_code == SEGV_ACCERR && is_write(context)) entry = find_entry(address);
  if (entry == nullptr || !make_writable(*entry, address)) hand_on(signal, info, context);
  errno = error;
}

void install() {
  sigaction(SIGSEGV, nullptr, &previous);
  struct sigaction action {};
  // The former handler's mask and SA_NODEFER are kept, because that handler may run inside this
  // one.
  action.sa_sigaction = on_fault;
  action.sa_mask = previous.sa_mask;
  // The handler runs on the alternate signal stack, if there is one, because a stack that has
  // overflowed has no room for a handler.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & SA_NODEFER);
  sigaction(SIGSEGV, &action, nullptr);
  installed = true;
}

GuardEntry* take_entry() {
  const std::lock_guard lock(table_mutex);
  if (!installed) install();
  for (size_t i = 0; i < kEntries; ++i) {
    if (table[i].taken) continue;
    table[i].taken = true;
    // The handler searches the entries below used_entries. It skips the new entry, because `begin`
    // of the new entry is still null.
    if (i >= used_entries.load()) used_entries.store(i + 1, std::memory_order_release);
    return &table[i];
  }
  return nullptr;
}

void give_back(GuardEntry& entry) {
  const std::lock_guard lock(table_mutex);
  entry.taken = false;
}

[[noreturn]] void refused(const FilePages& pages, const char* cause) {
  throw DeviceError(
      {.what = fmt::format("cannot make a read-only view of {}", format_bytes(pages.bytes)),
       .where = "memory shared by ranks",
       .cause = cause,
       .hint = "raise vm.max_map_count, or set Options::tuning.map_shards = false"});
}

}  // namespace

GuardedPages::GuardedPages(FilePages pages, std::byte* at) : entry_(take_entry()) {
  if (entry_ == nullptr) refused(pages, "this process already has 16384 views");
  entry_->pages = pages;
  // `begin` is set last, because the handler reads the other members as soon as `begin` is not
  // null.
  entry_->shown.store(Shown::kShared);
  if (!show(*entry_, at, PROT_READ, MAP_SHARED)) {
    const int error = errno;
    give_back(*entry_);
    refused(pages, std::strerror(error));
  }
  entry_->begin.store(at, std::memory_order_release);
}

GuardedPages::GuardedPages(GuardedPages&& other) noexcept
    : entry_(std::exchange(other.entry_, nullptr)) {}

GuardedPages::~GuardedPages() {
  if (entry_ == nullptr) return;
  // Set `begin` to null before another view can reuse the entry, so that the handler skips the
  // entry.
  entry_->begin.store(nullptr, std::memory_order_release);
  give_back(*entry_);
}

std::optional<int64_t> GuardedPages::take_write() {
  if (entry_->shown.load() != Shown::kPrivate) return std::nullopt;
  std::byte* const begin = entry_->begin.load();
  if (!show(*entry_, begin, PROT_READ, MAP_SHARED)) refused(entry_->pages, std::strerror(errno));
  entry_->shown.store(Shown::kShared);
  return entry_->first_write.load() - begin;
}

}  // namespace fsdp

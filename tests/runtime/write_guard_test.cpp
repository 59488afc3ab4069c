#include "runtime/write_guard.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <source_location>
#include <string>
#include <thread>
#include <vector>

#include "fsdp/error.h"
#include "support/sanitizers.h"

namespace fsdp {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kPages = 8;

// A file of numbered pages that its owner can write, and an address range for views of it.
class Shared {
 public:
  Shared() : file_(memfd_create("guarded", MFD_CLOEXEC)) {
    REQUIRE(ftruncate(file_, kPages * kPage) == 0);
    owner_ = map(PROT_READ | PROT_WRITE, MAP_SHARED, file_);
    view_ = map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    for (int64_t page = 0; page < kPages; ++page) std::memset(owner_ + page * kPage, 'a', kPage);
  }
  ~Shared() {
    munmap(owner_, kPages * kPage);
    munmap(view_, kPages * kPage);
    close(file_);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  GuardedPages guard(int64_t page, int64_t pages) const {
    return {{.file = file_, .offset = page * kPage, .bytes = pages * kPage},
            reinterpret_cast<std::byte*>(view_ + page * kPage)};
  }
  char& owner(int64_t at) const { return owner_[at]; }
  volatile char& view(int64_t at) const { return view_[at]; }

 private:
  static char* map(int protection, int flags, int file) {
    void* mapped = mmap(nullptr, kPages * kPage, protection, flags, file, 0);
    REQUIRE(mapped != MAP_FAILED);
    return static_cast<char*>(mapped);
  }

  int file_;
  char* owner_;
  char* view_;
};

// If `holds` is false, prints the line and ends the process of the test as failed.
void expect(bool holds, std::source_location where = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%u does not hold\n", where.file_name(), where.line());
  _exit(2);
}

// Runs `act` in a child process and returns its exit status. Each test needs its own process,
// because a guard is installed once per process, and doctest's handler for crashes would run before
// or after it.
int status_of(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGSEGV, SIG_DFL);
    act();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

// Writes to the first page, which is never mapped. The address is not null, because sanitizers
// detect a store to null before the system does.
void write_to_nothing() { *reinterpret_cast<volatile char*>(64) = 'x'; }

// Returns true if `act` ends by a fault. A sanitizer ends the process with its own exit code.
bool dies_of_fault(const std::function<void()>& act) {
  const int status = status_of(act);
  if (kSanitized) {
    return !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 2);
  }
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

TEST_CASE("a write to guarded pages is reported with its offset and reaches nobody else") {
  const Shared shared;
  CHECK(status_of([&] {
          GuardedPages guarded = shared.guard(0, kPages);
          expect(guarded.take_write() == std::nullopt);
          shared.view(3 * kPage + 7) = 'x';
          shared.view(1 * kPage) = 'y';
          expect(shared.view(3 * kPage + 7) == 'x');
          expect(shared.owner(3 * kPage + 7) == 'a');
          expect(guarded.take_write() == 3 * kPage + 7);
        }) == 0);
}

TEST_CASE("after a write was taken the pages are shared again, and guarded") {
  const Shared shared;
  CHECK(status_of([&] {
          GuardedPages guarded = shared.guard(0, kPages);
          for (const char value : {'b', 'c'}) {
            shared.view(5) = 'x';
            shared.owner(2 * kPage) = value;
            expect(guarded.take_write() == 5);
            expect(shared.view(5) == 'a');
            expect(shared.view(2 * kPage) == value);
            expect(guarded.take_write() == std::nullopt);
          }
        }) == 0);
}

TEST_CASE("of several guarded ranges the one that was written reports it") {
  const Shared shared;
  CHECK(status_of([&] {
          std::vector<GuardedPages> guarded;
          for (int64_t page = 0; page < kPages; ++page) guarded.push_back(shared.guard(page, 1));
          shared.view(5 * kPage + 9) = 'x';
          shared.view(2 * kPage + 1) = 'x';
          for (int64_t page = 0; page < kPages; ++page) {
            const std::optional<int64_t> written = guarded[page].take_write();
            expect(written.has_value() == (page == 5 || page == 2));
            if (written) expect(*written == (page == 5 ? 9 : 1));
          }
        }) == 0);
}

TEST_CASE("threads that write and read guarded pages at once all go on") {
  const Shared shared;
  CHECK(status_of([&] {
          GuardedPages guarded = shared.guard(0, kPages);
          for (int round = 0; round < 20; ++round) {
            std::atomic<int> ready{0};
            std::atomic<int64_t> wrong{0};
            std::vector<std::thread> threads;
            for (int64_t page = 0; page < kPages; ++page) {
              threads.emplace_back([&, page] {
                ++ready;
                while (ready < kPages) std::this_thread::yield();
                if (page % 2 == 0) shared.view(page * kPage) = 'x';
                const char expected = page % 2 == 0 ? 'x' : 'a';
                for (int i = 0; i < 1000; ++i) wrong += shared.view(page * kPage) != expected;
              });
            }
            for (std::thread& thread : threads) thread.join();
            expect(wrong == 0);
            expect(guarded.take_write().has_value());
          }
        }) == 0);
}

TEST_CASE("the entries of guards that are gone serve again") {
  const Shared shared;
  CHECK(status_of([&] {
          for (int i = 0; i < 40'000; ++i) {
            GuardedPages first = shared.guard(0, 1);
            GuardedPages moved(std::move(first));
            if (i % 10'000 != 0) continue;
            shared.view(3) = 'x';
            expect(moved.take_write() == 3);
          }
        }) == 0);
}

TEST_CASE("pages that the system does not show are an error") {
  CHECK(status_of([] {
          try {
            GuardedPages({.file = -1, .offset = 0, .bytes = kPage}, nullptr);
          } catch (const DeviceError& error) {
            const std::string text = error.what();
            expect(text.find("cannot make a read-only view of 4.0 KiB (memory shared by ranks); "
                             "Bad file descriptor") == 0);
            _exit(17);
          }
        }) == 17 << 8);
}

TEST_CASE("faults elsewhere end the process as before") {
  const Shared shared;
  const auto dies = [&](const std::function<void()>& act) {
    return dies_of_fault([&] {
      const GuardedPages guarded = shared.guard(2, 2);
      std::freopen("/dev/null", "w", stderr);  // sanitizers print the fault
      act();
    });
  };
  CHECK(!dies([&] { shared.view(2 * kPage) = 'x'; }));
  CHECK(dies([&] { shared.view(2 * kPage - 1) = 'x'; }));
  CHECK(dies([&] { shared.view(4 * kPage) = 'x'; }));
  CHECK(dies([] { write_to_nothing(); }));
  CHECK(dies([] { raise(SIGSEGV); }));
  CHECK(dies([&] {
    { const GuardedPages gone = shared.guard(6, 1); }
    shared.view(6 * kPage) = 'x';
  }));
}

TEST_CASE("faults elsewhere go to the handler that the program had before, guarded writes do not") {
  const Shared shared;
  const int status = status_of([&] {
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      _exit(reinterpret_cast<uintptr_t>(info->si_addr) == 64 ? 17 : 18);
    };
    sigaction(SIGSEGV, &action, nullptr);
    GuardedPages guarded = shared.guard(0, 1);
    shared.view(1) = 'x';
    expect(guarded.take_write() == 1);
    write_to_nothing();
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 17);
}

}  // namespace
}  // namespace fsdp

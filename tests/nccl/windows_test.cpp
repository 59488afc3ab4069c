// Tests memory that is registered with NCCL, and breaks the rules for this memory on purpose.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nccl/support/nccl_ranks.h"
#include "runtime/out_of_memory.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;
using fsdp::nccl::Comm;
using fsdp::nccl::Library;
using fsdp::nccl::Result;
using sim::NcclWrong;
using std::chrono::milliseconds;

namespace {

constexpr int64_t kBytes = 4096;
constexpr int64_t kNumel = 16;  // number of elements of a rank

// Gathers in place.
void gather(Communicator& communicator, const Buffer& memory, Stream& stream, int64_t at = 0) {
  const int64_t own = at + communicator.rank() * kNumel * int64_t{sizeof(float)};
  const CollectivePart part{memory.at(own), memory.at(at), kNumel, DType::kFloat32};
  communicator.all_gather({&part, 1}, {.label = "unit"}, stream);
}

// Returns the simulated library with a change.
Library changed_library(const std::function<void(Library& library)>& change) {
  sim::SimulatedGpu gpu;
  Library library = sim::SimulatedNccl(gpu).library();
  change(library);
  return library;
}

struct InWindows {
  explicit InWindows(const NcclRank& rank, bool by_copy_engines = false)
      : whole(rank.make("gather")),
        windows(whole->with_windows(by_copy_engines)),
        stream(rank.device.make_stream({.name = "gather"})) {}
  const std::unique_ptr<Communicator> whole, windows;
  const std::unique_ptr<Stream> stream;
};

}  // namespace

TEST_CASE("what is gathered into registered memory is exact, and nothing is left") {
  for (const int world : {2, 3}) {
    for (const bool by_copy_engines : {false, true}) {
      CAPTURE(by_copy_engines);
      NcclMachine machine(world, {.seed = static_cast<uint32_t>(world)});
      machine.nccl().set_version(nccl::kWindowsFrom);
      run_nccl_ranks(world, machine, [&](const NcclRank& rank) {
        const InWindows on(rank, by_copy_engines);
        for (int turn = 0; turn < 2; ++turn) {
          const Buffer memory = on.windows->allocate(kBytes);
          CHECK_FALSE(on.windows->allocate(0));
          std::vector<float> values(static_cast<size_t>(kNumel * world), 1);
          const int64_t bytes = std::ssize(values) * int64_t{sizeof(float)};
          on.stream->read(values.data(), memory.data(), bytes);
          CHECK(std::ranges::count(values, 0.0F) == std::ssize(values));
          const Buffer pinned = rank.device.allocate(bytes, MemoryKind::kPinned);
          std::fill_n(static_cast<float*>(pinned.data()), kNumel, 1.0F + rank.mesh.rank());
          on.stream->copy(memory.at(rank.mesh.rank() * bytes / world), pinned.data(),
                          bytes / world);
          gather(*on.windows, memory, *on.stream);
          on.stream->read(values.data(), memory.data(), bytes);
          for (int64_t i = 0; i < std::ssize(values); ++i) {
            CHECK(values[static_cast<size_t>(i)] == 1.0F + static_cast<float>(i / kNumel));
          }
        }
        on.windows->barrier({.label = "other calls"}, *on.stream);
        on.stream->synchronize();
      });
      CHECK(machine.nccl().zero_cta_communicators() == (by_copy_engines ? world : 0));
      CHECK(machine.nccl().calls("ncclCommWindowRegister") == 2 * world);
      CHECK(machine.nccl().calls("ncclCommWindowDeregister") == 2 * world);
      CHECK(machine.nccl().calls("ncclMemFree") == 2 * world);
      CHECK(machine.gpu().take_reports().empty());
      CHECK(machine.left_at_end().empty());
    }
  }
}

TEST_CASE("an NCCL that spoils registered memory, or cannot register any, is refused") {
  const Library without =
      changed_library([](Library& library) { library.comm_window_register = nullptr; });
  for (const Library* library : {static_cast<const Library*>(nullptr), &without}) {
    NcclMachine machine(2, {.library = library});
    machine.nccl().set_version(library == nullptr ? nccl::kWindowsFrom - 1 : nccl::kWindowsFrom);
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto all = rank.make("all");
      CHECK_THROWS_WITH_AS(
          all->with_windows(false),
          fmt::format("NCCL 2.31.{} is too old to register memory "
                      "(Options::tuning.nccl_registration); before 2.31.2, collectives on "
                      "registered memory corrupted data, and two ranks could deadlock; hint: leave "
                      "nccl_registration at kOff, or use a LibTorch with a newer NCCL",
                      library == nullptr ? 1 : 2)
              .c_str(),
          InvalidArgument);
    });
    CHECK(machine.nccl().calls("ncclCommSplit") == 0);
    CHECK(machine.gpu().take_reports().empty());
  }
}

TEST_CASE("a device without memory for a window says so, and the job goes on") {
  NcclMachine machine(2);
  machine.nccl().set_version(nccl::kWindowsFrom);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const InWindows on(rank);
    machine.nccl().script({.name = "ncclMemAlloc",
                           .device = rank.mesh.rank(),
                           .result = Result::kUnhandledCudaError});
    CHECK_THROWS_AS(on.windows->allocate(kBytes), OutOfMemory);
    const Buffer memory = on.windows->allocate(kBytes);
    gather(*on.windows, memory, *on.stream);
    on.stream->synchronize();
  });
  CHECK(machine.gpu().take_reports().empty());
}

TEST_CASE("a registration that fails, hangs or does not end, ends the job on all ranks") {
  for (const NcclWrong wrong :
       {NcclWrong::kFails, NcclWrong::kHangs, NcclWrong::kStaysInProgress}) {
    CAPTURE(static_cast<int>(wrong));
    NcclMachine* to_free = nullptr;
    NcclMachine machine(2, {.timeout = milliseconds(300), .on_stuck = [&](const Failure&) {
                              to_free->nccl().let_go();  // the library would end the process here
                            }});
    to_free = &machine;
    machine.nccl().set_version(nccl::kWindowsFrom);
    machine.nccl().script({.name = "ncclCommWindowRegister", .device = 1, .wrong = wrong});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      std::string told;
      try {
        const InWindows on(rank);
        const Buffer memory = on.windows->allocate(kBytes);
        gather(*on.windows, memory, *on.stream);
        on.stream->synchronize();
        rank.meet("end");
      } catch (const CommError& error) {
        told = error.what();
      }
      CAPTURE(told);
      // On a busy machine, the other rank may be the first to notice that it waits.
      const bool may_wait = wrong == NcclWrong::kStaysInProgress;
      CHECK((contains(told, "registration of a window") || contains(told, "rank 1 gave up") ||
             (may_wait && contains(told, "NCCL did not finish within 0.3 s"))));
    });
    CHECK(machine.gpu().take_reports().empty());
    CHECK(machine.left_at_end().empty());
  }
}

TEST_CASE("mutation: a registration by an NCCL that spoils memory") {
  const Library by = changed_library([](Library& library) {
    library.get_version = [](int* version) {
      *version = nccl::kWindowsFrom;
      return Result::kSuccess;
    };
  });
  NcclMachine machine(2, {.timeout = milliseconds(2000), .library = &by});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto run = [&] { InWindows(rank).windows->allocate(kBytes); };
    CHECK_THROWS_AS(run(), CommError);
  });
  CHECK(objects(machine, "memory is registered with version 23007, which spoils it"));
}

TEST_CASE("mutation: memory that goes while it is registered") {
  const Library by = changed_library([](Library& library) {
    library.comm_window_deregister = [](Comm*, nccl::Window*) { return Result::kSuccess; };
  });
  NcclMachine machine(2, {.timeout = milliseconds(2000), .library = &by});
  machine.nccl().set_version(nccl::kWindowsFrom);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    InWindows on(rank);
    on.windows->allocate(kBytes);
  });
  CHECK(objects(machine, "memory goes that is registered"));
}

TEST_CASE("mutation: windows that the communicator's end leaves") {
  NcclMachine machine(2, {.timeout = milliseconds(2000)});
  machine.nccl().set_version(nccl::kWindowsFrom);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    Buffer memory;
    const auto all = rank.make("all");
    const auto windows = all->with_windows(false);
    memory = windows->allocate(kBytes);
  });
  CHECK(objects(machine, "a communicator ends whose windows were not given back"));
}

TEST_CASE("mutation: a collective on memory whose window was given back") {
  const Library by = changed_library(
      [](Library& library) { library.mem_free = [](void*) { return Result::kSuccess; }; });
  NcclMachine machine(2, {.timeout = milliseconds(2000), .library = &by});
  machine.nccl().set_version(nccl::kWindowsFrom);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto run = [&] {
      const InWindows on(rank);
      void* const gone = on.windows->allocate(kBytes).data();
      const Buffer seen(gone, kBytes, nullptr);
      gather(*on.windows, seen, *on.stream);
    };
    CHECK_THROWS_AS(run(), CommError);
  });
  CHECK(objects(machine, "a collective on memory whose window was given back"));
}

TEST_CASE("mutation: a window that is given back while a collective uses it") {
  for (const bool mutated : {false, true}) {
    NcclMachine machine(2, {.timeout = milliseconds(300)});
    machine.nccl().set_version(nccl::kWindowsFrom);
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const InWindows on(rank);
      std::optional<Buffer> memory = on.windows->allocate(kBytes);
      rank.meet("made");
      if (mutated) machine.nccl().hang_collectives();
      gather(*on.windows, *memory, *on.stream);
      if (!mutated) on.stream->synchronize();
      memory.reset();
      if (mutated) CHECK_THROWS_AS(on.stream->synchronize(), Error);
    });
    CHECK(objects(machine, "a window is given back while a collective uses it") == mutated);
  }
}

TEST_CASE("mutation: another place of a window on one rank") {
  NcclMachine machine(2, {.timeout = milliseconds(2000)});
  machine.nccl().set_version(nccl::kWindowsFrom);
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const InWindows on(rank);
    const Buffer memory = on.windows->allocate(kBytes);
    const auto run = [&] {
      gather(*on.windows, memory, *on.stream, rank.mesh.rank() * 1024);
      on.stream->synchronize();
      rank.meet("end");
    };
    CHECK_THROWS_AS(run(), CommError);
  });
  CHECK(objects(machine, "at 1024 of window 0"));
}

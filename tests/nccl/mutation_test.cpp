// Breaks NCCL's rules on purpose. The simulated GPUs must report this every time.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "nccl/support/nccl_ranks.h"
#include "runtime/stream.h"

using namespace fsdp;
using namespace fsdp::testing;
using fsdp::nccl::Comm;
using fsdp::nccl::Library;
using fsdp::nccl::Result;
using std::chrono::milliseconds;

namespace {

// The library to which a mutated library forwards its calls, and the switch that turns the mutation
// on.
const Library* real = nullptr;
std::atomic<bool> is_mutated = false;
thread_local Comm* gathers_by = nullptr;  // the communicator of this rank's last all_gather
std::atomic<Comm*> seen_comm = nullptr;

Result never_in_progress(Comm* comm, Result* result) {
  const Result asked = real->comm_get_async_error(comm, result);
  if (is_mutated && *result == Result::kInProgress) *result = Result::kSuccess;
  return asked;
}

Result no_group_start() { return is_mutated ? Result::kSuccess : real->group_start(); }
Result no_group_end() { return is_mutated ? Result::kSuccess : real->group_end(); }

Result seen_all_gather(const void* send, void* recv, size_t count, nccl::DataType type, Comm* comm,
                       void* stream) {
  gathers_by = comm;
  return real->all_gather(send, recv, count, type, comm, stream);
}

Result seen_all_reduce(const void* send, void* recv, size_t count, nccl::DataType type,
                       nccl::RedOp op, Comm* comm, void* stream) {
  seen_comm = comm;
  return real->all_reduce(send, recv, count, type, op, comm, stream);
}

// A copy of the simulated library that `change` has mutated.
class Mutated {
 public:
  explicit Mutated(const std::function<void(Library& library)>& change) {
    {
      sim::SimulatedGpu gpu;
      real = &sim::SimulatedNccl(gpu).library();
    }
    library_ = *real;
    change(library_);
    is_mutated = false;
    seen_comm = nullptr;
  }
  ~Mutated() { is_mutated = false; }
  Mutated(const Mutated&) = delete;
  Mutated& operator=(const Mutated&) = delete;
  const Library* library() const { return &library_; }

 private:
  Library library_;
};

struct Memory {
  explicit Memory(const NcclRank& rank)
      : buffer(rank.device.allocate(4096, MemoryKind::kDevice)),
        part{buffer.at(0), buffer.at(1024), 16, DType::kFloat32} {}
  Buffer buffer;
  CollectivePart part;
};

// Issues a collective. Then another stream reads its result. An event orders the read after the
// collective.
void gather_and_read(const NcclRank& rank, Communicator& communicator) {
  const auto stream = rank.device.make_stream({.name = "gather"});
  const auto reader = rank.device.make_stream({.name = "reader"});
  const Memory memory(rank);
  communicator.all_gather({&memory.part, 1}, {.sequence = 1, .label = "unit"}, *stream);
  Event gathered(rank.device);
  stream->record(gathered);
  reader->wait(gathered);
  reader->copy(memory.buffer.at(2048), memory.buffer.at(1024), 128);
  reader->synchronize();
  // Waits until NCCL's own thread would have launched the collective.
  Result state = Result::kInProgress;
  while (is_mutated && state == Result::kInProgress) real->comm_get_async_error(gathers_by, &state);
}

// Turns the mutation on for both ranks.
void mutate(const NcclRank& rank) {
  rank.meet("made");
  if (rank.mesh.rank() == 0) is_mutated = true;
  rank.meet("mutated");
}

}  // namespace

TEST_CASE("mutation: an event that is recorded before the launch is issued") {
  for (const bool mutated : {false, true}) {
    const Mutated by([](Library& library) {
      library.comm_get_async_error = never_in_progress;
      library.all_gather = seen_all_gather;
    });
    NcclMachine machine(
        2, {.most_questions = 9, .timeout = milliseconds(400), .library = by.library()});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto communicator = rank.make("gather");
      if (mutated) mutate(rank);
      gather_and_read(rank, *communicator);
    });
    CHECK(objects(machine, "and nothing orders them") == mutated);
  }
}

TEST_CASE("mutation: a group left out") {
  const Mutated by([](Library& library) {
    library.group_start = no_group_start;
    library.group_end = no_group_end;
  });
  NcclMachine machine(2, {.timeout = milliseconds(2000), .library = by.library()});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto run = [&] {
      mutate(rank);
      gather_and_read(rank, *communicator);
    };
    CHECK_THROWS_AS(run(), Error);
  });
  CHECK(objects(machine, "a collective outside of a group"));
}

TEST_CASE("mutation: launches of two communicators in another order on one rank") {
  struct Way {
    bool has_places;
    bool is_launched;            // false: each rank's first collective stays in progress
    std::string_view objection;  // text that the GPUs must report
  };
  for (const auto& [has_places, is_launched, objection] :
       {Way{false, true, "share is of communicator"},
        Way{false, false, "wait for each other, in communicators"}, Way{true, true, ""}}) {
    CAPTURE(has_places);
    NcclMachine machine(2, {.most_questions = 0, .timeout = milliseconds(2000)});
    std::atomic<int> told = 0;
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto gather = rank.make("gather"), reduce = rank.make("reduce");
      const auto one = rank.device.make_stream({.name = "one"});
      const auto two = rank.device.make_stream({.name = "two"});
      const Memory memory(rank);
      if (!is_launched) {
        machine.nccl().script({.name = "ncclGroupEnd",
                               .device = rank.mesh.rank(),
                               .wrong = sim::NcclWrong::kStaysInProgress});
      }
      rank.meet("made");
      uint64_t place = 0;
      const auto tag = [&] {
        return CollectiveTag{.sequence = has_places ? ++place : 0, .label = "unit"};
      };
      const auto issue_one = [&] { gather->barrier(tag(), *one); };
      const auto issue_two = [&] { reduce->barrier(tag(), *two); };
      try {
        const bool one_first = rank.mesh.rank() == 0;
        one_first ? issue_one() : issue_two();
        // Without this barrier, a rank could issue its second collective before the other rank's
        // first one is launched.
        if (is_launched && !has_places) rank.meet("launched");
        one_first ? issue_two() : issue_one();
        one->synchronize();
        two->synchronize();
        rank.meet("done");
      } catch (const Error& error) {
        if (std::string_view(error.what()).find("on different communicators") !=
            std::string_view::npos) {
          ++told;
        }
      }
    });
    // If collectives have numbers in the collective sequence, the ranks notice the difference
    // before NCCL runs.
    CHECK(told == (has_places ? 2 : 0));
    CHECK((objection.empty() || objects(machine, objection)));
    CHECK(machine.gpu().take_reports().empty());
  }
}

TEST_CASE("mutation: an abort while a thread is inside another call") {
  const Mutated by([](Library& library) { library.all_reduce = seen_all_reduce; });
  NcclMachine machine(2, {.timeout = milliseconds(60'000), .library = by.library()});
  run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
    const auto communicator = rank.make("gather");
    const auto stream = rank.device.make_stream({.name = "gather"});
    const auto wait_for_ever = [&] {
      rank.meet("made");
      rank.meet("never");
    };
    if (rank.mesh.rank() == 1) {
      CHECK_THROWS_AS(wait_for_ever(), Error);
      return;
    }
    rank.meet("made");
    const int64_t before = machine.nccl().calls("ncclGroupEnd", 0);
    machine.nccl().script({.name = "ncclGroupEnd", .device = 0, .wrong = sim::NcclWrong::kHangs});
    std::thread impatient([&] {
      while (machine.nccl().calls("ncclGroupEnd", 0) == before) std::this_thread::yield();
      rank.device.make_current();
      real->comm_abort(seen_comm);
      machine.nccl().let_go();
    });
    CHECK_THROWS_AS(communicator->barrier({.label = "unit"}, *stream), Error);
    impatient.join();
  });
  CHECK(objects(machine, "an abort while a thread is inside another call"));
}

TEST_CASE("mutation: memory freed before the abort") {
  for (const bool mutated : {false, true}) {
    CAPTURE(mutated);
    NcclMachine machine(2, {.timeout = milliseconds(200)});
    run_nccl_ranks(2, machine, [&](const NcclRank& rank) {
      const auto communicator = rank.make("gather");
      const auto stream = rank.device.make_stream({.name = "gather"});
      Memory memory(rank);
      rank.meet("made");
      machine.nccl().hang_collectives();
      communicator->all_gather({&memory.part, 1}, {.sequence = 1, .label = "unit"}, *stream);
      if (mutated) memory.buffer = Buffer();
      CHECK_THROWS_AS(stream->synchronize(), Error);
    });
    CHECK(objects(machine, "while a collective that does not end is on its device") == mutated);
  }
}

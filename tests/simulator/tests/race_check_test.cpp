#include "simulator/race_check.h"

#include <doctest/doctest.h>

#include <array>

#include "comm/mesh_state.h"
#include "kernels/fill.h"
#include "simulator/checked_mesh.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Streams {
  Streams() { check.add_memory(memory.data(), sizeof(memory)); }
  std::array<std::byte, 64> memory{};
  RaceCheck check;
  const int a = check.add_stream("a"), b = check.add_stream("b"), c = check.add_stream("c");

  void reads(int stream, int at = 0, int count = 8) { touch(stream, "read", at, count, false); }
  void writes(int stream, int at = 0, int count = 8) { touch(stream, "write", at, count, true); }
  void touch(int stream, std::string_view what, int at, int count, bool write) {
    const TouchedBytes bytes{memory.data() + at, count, write};
    check.work(stream, what, {&bytes, 1});
  }
  void order(int before, int after) { check.wait(after, check.mark(before), CodePlace::current()); }
};

}  // namespace

TEST_CASE("two writes, and a read beside a write, need an order; two reads need none") {
  Streams s;
  s.reads(s.a);
  s.reads(s.b);
  CHECK(s.check.found().empty());
  s.writes(s.b);
  CHECK(s.check.found() == std::set<std::string>{"'write' on b writes what 'read' on a reads"});
  s.writes(s.c);
  CHECK(s.check.found().contains("'write' on c writes what 'write' on b writes"));
  s.reads(s.a);
  CHECK(s.check.found().contains("'read' on a reads what 'write' on b writes"));
}

TEST_CASE("work of one stream is in order, and so is other memory") {
  Streams s;
  s.writes(s.a);
  s.writes(s.a);
  s.reads(s.a);
  s.writes(s.b, 8, 8);
  s.writes(s.c, 16, 0);
  CHECK(s.check.found().empty());
  s.reads(s.b, 7, 1);
  CHECK(s.check.found().size() == 1);
}

TEST_CASE("an event orders what was before it, also through a third stream, and nothing later") {
  Streams s;
  s.writes(s.a);
  s.order(s.a, s.b);
  s.order(s.b, s.c);
  s.reads(s.c);
  s.reads(s.b);
  CHECK(s.check.found().empty());
  s.writes(s.a);  // issued after the event, while both may still read
  CHECK(s.check.found() == std::set<std::string>{"'write' on a writes what 'read' on b reads",
                                                 "'write' on a writes what 'read' on c reads"});
}

TEST_CASE("a read in between does not hide the write before it") {
  Streams s;
  s.writes(s.a);
  s.order(s.a, s.b);
  s.reads(s.b);
  s.reads(s.c);
  CHECK(s.check.found() == std::set<std::string>{"'read' on c reads what 'write' on a writes"});
}

TEST_CASE("memory that was given back, or never taken, is nobody's") {
  Streams s;
  s.writes(s.a);
  s.check.remove_memory(s.memory.data());
  s.writes(s.b);
  s.check.add_memory(s.memory.data(), 64);
  s.writes(s.c);
  CHECK(s.check.found().empty());
}

TEST_CASE("kernels and collectives of a checked mesh tell what they touch, inline and threaded") {
  for (const bool beside : {false, true}) {
    std::vector<CheckedRank> ranks = checked_ranks(1);
    const CheckedDevice& device = *ranks[0].device;
    Communicator& communicator = state_of(ranks[0].mesh).gather_communicator(Axis::kShard);
    const auto first = device.make_stream({.name = "first", .runs_beside = beside});
    const auto second = device.make_stream({.name = "second", .runs_beside = beside});
    const Buffer memory = communicator.allocate(64);
    const kernels::FillRun run{memory.data(), 16, DType::kFloat32};
    const CollectivePart part{memory.data(), memory.data(), 16, DType::kFloat32};
    Event filled = device.make_event();
    kernels::fill_zero(*first, {&run, 1});
    first->record(filled);
    second->wait(filled);
    communicator.all_reduce({&part, 1}, ReduceOp::kSum, {.sequence = 0, .label = "x"}, *second);
    CHECK(device.check().found().empty());
    kernels::fill_zero(*first, {&run, 1});
    CHECK(device.check().found().contains(
        "'fill_zero' on first writes what 'all_reduce' on second writes"));
    first->synchronize();
    second->synchronize();
  }
}

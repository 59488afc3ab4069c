// Tests ranks that disagree, are missing or give up. The error must name both sides, and no rank
// may hang or continue silently.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "fsdp/mesh.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

struct Side {
  std::string_view operation = "all_reduce";
  int64_t numel = 300;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::string_view label = "norm";
  uint64_t sequence = 7;
  int parts = 1;
};

void issue(Communicator& communicator, const Side& side, Stream& stream) {
  const Buffer send = allocate_host(16 * 1024);
  const Buffer recv = allocate_host(16 * 1024);
  const std::vector<CollectivePart> parts(side.parts,
                                          {send.data(), recv.data(), side.numel, side.dtype});
  const CollectiveTag tag{.sequence = side.sequence, .label = side.label};
  if (side.operation == "all_reduce") communicator.all_reduce(parts, side.op, tag, stream);
  if (side.operation == "reduce_scatter") communicator.reduce_scatter(parts, side.op, tag, stream);
  if (side.operation == "all_gather") communicator.all_gather(parts, tag, stream);
  if (side.operation == "broadcast") communicator.broadcast(parts, side.root, tag, stream);
  if (side.operation == "barrier") communicator.barrier(tag, stream);
  stream.synchronize();
}

// Checks that all ranks fail with `text` if rank `odd` of three issues `theirs` and the others
// issue `ours`.
void expect_disagreement(const Side& ours, const Side& theirs, const std::string& text) {
  for (const int odd : {0, 1, 2}) {
    for (const testing::CpuStreams kind :
         {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
      const auto errors = testing::errors_of_ranks(3, [&](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(kind, "x");
        issue(state_of(mesh).reduce_communicator(Axis::kShard), mesh.rank() == odd ? theirs : ours,
              *stream);
      });
      for (const std::string& error : errors) {
        CHECK(error == errors[0]);
        if (odd == 2) {
          CHECK(error.substr(0, error.rfind(" (", error.find("; hint: issue the same"))) ==
                testing::kDisagree + "rank 0 issued " + text);
        }
      }
      CHECK(errors[0].find(testing::kDisagree + "rank 0 issued") == 0);
    }
  }
}

TEST_CASE("a different operation is an error that names both sides") {
  expect_disagreement({}, {.operation = "barrier"},
                      "all_reduce (sum) of 300 float32 'norm' #7, rank 2 issued barrier 'norm' #7");
}

TEST_CASE("a different count is an error that names both sides") {
  expect_disagreement({}, {.numel = 301},
                      "all_reduce (sum) of 300 float32 'norm' #7, "
                      "rank 2 issued all_reduce (sum) of 301 float32 'norm' #7");
  expect_disagreement({.operation = "all_gather", .numel = 3}, {.operation = "all_gather"},
                      "all_gather of 3 float32 'norm' #7, "
                      "rank 2 issued all_gather of 300 float32 'norm' #7");
}

TEST_CASE("a different dtype of the same size is an error that names both sides") {
  expect_disagreement({}, {.dtype = DType::kInt32},
                      "all_reduce (sum) of 300 float32 'norm' #7, "
                      "rank 2 issued all_reduce (sum) of 300 int32 'norm' #7");
}

TEST_CASE("a different reduce-op is an error that names both sides") {
  expect_disagreement({}, {.op = ReduceOp::kMax},
                      "all_reduce (sum) of 300 float32 'norm' #7, "
                      "rank 2 issued all_reduce (max) of 300 float32 'norm' #7");
}

TEST_CASE("a different root is an error that names both sides") {
  expect_disagreement({.operation = "broadcast"}, {.operation = "broadcast", .root = 1},
                      "broadcast from rank 0 of 300 float32 'norm' #7, "
                      "rank 2 issued broadcast from rank 1 of 300 float32 'norm' #7");
}

TEST_CASE("a different unit or place in the host order is an error that names both sides") {
  expect_disagreement({.label = "layers.1"}, {.label = "layers.2"},
                      "all_reduce (sum) of 300 float32 'layers.1' #7, "
                      "rank 2 issued all_reduce (sum) of 300 float32 'layers.2' #7");
  expect_disagreement({}, {.sequence = 8},
                      "all_reduce (sum) of 300 float32 'norm' #7, "
                      "rank 2 issued all_reduce (sum) of 300 float32 'norm' #8");
}

// Returns `length` bytes that are the same on all ranks, except for the byte at `differs`.
std::string name_that_differs_at(int64_t differs, int64_t length, bool odd) {
  std::string name(length, 'x');
  name[differs] = odd ? 'b' : 'a';
  return name;
}

TEST_CASE("names of any length are compared as a whole") {
  for (const int64_t length : {10, 44, 45, 47, 48, 49, 63, 64, 100, 200}) {
    for (const int64_t differs : {int64_t{0}, length / 2, length - 1}) {
      CAPTURE(length);
      CAPTURE(differs);
      const auto errors = testing::errors_of_ranks(2, [&](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        const std::string same(length, 'x');
        issue(state_of(mesh).reduce_communicator(Axis::kShard), {.label = same}, *stream);
        const std::string name = name_that_differs_at(differs, length, mesh.rank() == 1);
        issue(state_of(mesh).reduce_communicator(Axis::kShard), {.label = name}, *stream);
      });
      CHECK(errors[0].find(testing::kDisagree + "rank 0 issued") == 0);
      CHECK(errors[0].find("collective 2 of") != std::string::npos);
      CHECK(errors[0] == errors[1]);
    }
  }
}

TEST_CASE("a long name is shown by its end, where units differ") {
  const std::string stem = "bert.encoder.a_module_with_a_long_name.layers.";
  const std::string rest = ".attention.output.dense";
  const std::string first = stem + "17" + rest;
  const std::string second = stem + "18" + rest;
  expect_disagreement({.label = first}, {.label = second},
                      "all_reduce (sum) of 300 float32 '…a_long_name.layers.17.attention."
                      "output.dense' #7, rank 2 issued all_reduce (sum) of 300 float32 "
                      "'…a_long_name.layers.18.attention.output.dense' #7");
}

TEST_CASE("where the shown ends of two names are equal, the error says that their fronts differ") {
  const std::string end(44, 'x');
  const std::string text = "all_reduce (sum) of 300 float32 '…" + end + "' #7";
  expect_disagreement(
      {.label = "first" + end}, {.label = "other" + end},
      text + ", rank 2 issued " + text + "; their names differ before the part that is shown");
}

TEST_CASE("a name is not cut in the middle of a character") {
  const std::string name = std::string(10, 'x') + "ä" + std::string(43, 'y');
  const std::string text = "all_reduce (sum) of 300 float32 '…" + std::string(43, 'y') + "' #";
  expect_disagreement({.label = name}, {.label = name, .sequence = 8},
                      text + "7, rank 2 issued " + text + "8");
}

TEST_CASE("a different number of parts is an error, also when the total is equal") {
  const std::string three = "300 float32 + 300 float32 + 300 float32 'norm' #7";
  expect_disagreement(
      {.parts = 3}, {.numel = 900},
      "all_reduce (sum) of " + three + ", rank 2 issued all_reduce (sum) of 900 float32 'norm' #7");
}

TEST_CASE("two communicators used in different orders are found out by the sequence") {
  const auto errors = testing::errors_of_ranks(2, [&](const Mesh& mesh) {
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "x");
    const auto gather = [&](uint64_t sequence) {
      state_of(mesh)
          .gather_communicator(Axis::kShard)
          .barrier({.sequence = sequence, .label = "g"}, *stream);
    };
    const auto reduce = [&](uint64_t sequence) {
      state_of(mesh)
          .reduce_communicator(Axis::kShard)
          .barrier({.sequence = sequence, .label = "r"}, *stream);
    };
    if (mesh.rank() == 0) {
      gather(1);
      reduce(2);
    } else {
      gather(2);
      reduce(1);
    }
    stream->synchronize();
  });
  CHECK(errors[0] == errors[1]);
  CHECK(errors[0].find("rank 0 issued barrier 'g' #1, rank 1 issued barrier 'g' #2") !=
        std::string::npos);
}

TEST_CASE("a rank that does not come is named when the deadline has passed") {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> out{0};
  const auto errors = testing::errors_of_ranks(
      3,
      [&](const Mesh& mesh) {
        if (mesh.rank() == 1) {
          // This rank issues nothing, but runs until the others have given up.
          while (out.load() < 2) std::this_thread::yield();
          return;
        }
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        try {
          issue(state_of(mesh).gather_communicator(Axis::kShard), {.operation = "all_gather"},
                *stream);
        } catch (...) {
          ++out;
          throw;
        }
      },
      {.mesh = {.timeout = milliseconds(200)}, .in_each_thread = {}});
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  CHECK(errors[0] == errors[2]);
  CHECK(errors[1].empty());
  CHECK(errors[0] ==
        "rank 1 did not arrive within 0.2 s (all_gather of 300 float32 'norm' #7); its process is "
        "alive, but stopped, stuck, slow or busy with other work; hint: attach a debugger to that "
        "rank; if it is only slow, raise MeshOptions::timeout");
}

TEST_CASE("a rank that is waited for is named, not the one that waits for it elsewhere") {
  std::atomic<int> out{0};
  const auto errors = testing::errors_of_ranks(
      3,
      [&](const Mesh& mesh) {
        if (mesh.rank() == 2) {
          while (out.load() < 2) std::this_thread::yield();
          return;
        }
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        try {
          const bool gathers = mesh.rank() == 0;
          issue(gathers ? state_of(mesh).gather_communicator(Axis::kShard)
                        : state_of(mesh).reduce_communicator(Axis::kShard),
                {.sequence = gathers ? 7U : 8U}, *stream);
        } catch (...) {
          ++out;
          throw;
        }
      },
      {.mesh = {.timeout = milliseconds(500)}, .in_each_thread = {}});
  CHECK(errors[0].find("rank 2 did not arrive within 0.5 s (") == 0);
  CHECK(errors[0] == errors[1]);
}

TEST_CASE("a slow rank is called slow once, on one rank, and the wait goes on") {
  std::atomic<int> calls{0};
  std::vector<std::string> said(3);
  const auto hear = [&](const MeshEvent& event) {
    const SlowRank& slow = event.slow;
    said[calls++] = fmt::format("rank {}, a third of the time-out: {}, {}", slow.rank,
                                slow.waited >= milliseconds(1000), slow.collective);
  };
  const auto errors = testing::errors_of_ranks(
      3,
      [&](const Mesh& mesh) {
        const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
        for (const int expected : {1, 1}) {
          if (mesh.rank() == 1) {
            while (calls.load() < expected) std::this_thread::yield();
          }
          issue(state_of(mesh).reduce_communicator(Axis::kShard), {}, *stream);
        }
      },
      {.mesh = {.timeout = milliseconds(3000), .on_event = hear}, .in_each_thread = {}});
  for (const std::string& error : errors) CHECK(error == "");
  CHECK(calls == 1);
  CHECK(said[0] ==
        "rank 1, a third of the time-out: true, all_reduce (sum) of 300 float32 'norm' #7");
}

TEST_CASE("a rank that gives up is the first cause on all ranks, in all communicators") {
  const auto errors = testing::errors_of_ranks(4, [&](const Mesh& mesh) {
    if (mesh.rank() == 2) throw IoError(ExitCode::kIoError, {.what = "the disk is full"});
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "x");
    auto& communicator = mesh.rank() == 0 ? state_of(mesh).gather_communicator(Axis::kShard)
                                          : state_of(mesh).reduce_communicator(Axis::kShard);
    issue(communicator, {.sequence = 0}, *stream);
  });
  CHECK(errors[2] == "the disk is full");
  for (const int rank : {0, 1, 3}) {
    CHECK(errors[rank] ==
          "rank 2 gave up (all_reduce (sum) of 300 float32 'norm'); the disk is full; hint: "
          "see what rank 2 printed");
  }
}

TEST_CASE("after an error every later call throws the first one") {
  testing::run_ranks_to_end(2, [&](const Mesh& mesh) {
    mesh.abort(mesh.rank() == 0 ? "the first" : "the second");
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
    std::array<std::string, 2> texts;
    for (std::string& text : texts) {
      try {
        issue(state_of(mesh).control_communicator(), {.operation = "barrier"}, *stream);
      } catch (const CommError& error) {
        text = error.what();
        CHECK(error.code() == ExitCode::kPeerFailed);
      }
    }
    CHECK(texts[0] == texts[1]);
    CHECK(texts[0].find("gave up") != std::string::npos);
  });
}

TEST_CASE("a rank that finishes while others need it is named") {
  const auto errors = testing::errors_of_ranks(3, [&](const Mesh& mesh) {
    const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
    issue(state_of(mesh).reduce_communicator(Axis::kShard), {}, *stream);
    if (mesh.rank() == 0) return;
    issue(state_of(mesh).reduce_communicator(Axis::kShard), {.label = "one more"}, *stream);
  });
  CHECK(errors[0].empty());
  CHECK(errors[1].find("rank 0 left while other ranks still need it (all_reduce (sum) of 300 "
                       "float32 'one more' #7)") == 0);
  CHECK(errors[1] == errors[2]);
}

TEST_CASE("an exception that leaves a mesh's scope tells the others") {
  const auto errors = testing::errors_of_ranks(2, [&](const Mesh& mesh) {
    if (mesh.rank() == 0) {
      const std::vector<Mesh> inner = Mesh::local(2);
      Mesh other = inner[1];
      try {
        const Mesh scoped = std::move(const_cast<Mesh&>(inner[0]));
        throw std::runtime_error("lost");
      } catch (const std::runtime_error&) {
      }
      const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
      issue(state_of(other).control_communicator(), {.operation = "barrier"}, *stream);
    }
  });
  CHECK(errors[0].find("rank 0 gave up (barrier 'norm' #7); an exception ended its program") == 0);
}

TEST_CASE("arguments that no rank may use are refused at the call") {
  const Mesh mesh = Mesh::single();
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "x");
  Communicator& communicator = state_of(mesh).control_communicator();
  CHECK_THROWS_WITH_AS(issue(communicator, {.numel = -1}, *stream),
                       "a part of the collective has -1 elements, expected 0 or more (all_reduce "
                       "(sum) of -1 float32 'norm' #7); hint: set numel to 0 or more",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(issue(communicator, {.dtype = DType::kInt64, .op = ReduceOp::kAvg}, *stream),
                       "int64 cannot be averaged (all_reduce (avg) of 300 int64 'norm' #7); hint: "
                       "use kSum, or convert the data to a floating type",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(
      issue(communicator, {.operation = "broadcast", .root = 1}, *stream),
      "broadcast has root 1, but the group has 1 ranks (broadcast from rank 1 of 300 "
      "float32 'norm' #7); hint: "
      "pass a rank from 0 to size() - 1",
      InvalidArgument);
  std::array<float, 4> values{};
  std::array<SendRun, 2> runs{SendRun{values.data(), 2}, SendRun{values.data(), 1}};
  const CollectivePart part{nullptr, values.data(), 4, DType::kFloat32, runs};
  CHECK_THROWS_WITH_AS(
      communicator.all_gather({&part, 1}, {.sequence = 7, .label = "norm"}, *stream),
      "the runs of a part have 3 elements in all, expected 4 (all_gather of 4 float32 'norm' #7); "
      "hint: make "
      "the runs add up to the elements that the part sends",
      InvalidArgument);
  runs = {SendRun{values.data(), 6}, SendRun{values.data(), -2}};
  CHECK_THROWS_WITH_AS(
      communicator.all_gather({&part, 1}, {.sequence = 7, .label = "norm"}, *stream),
      doctest::Contains(
          "runs of a part have 4 elements in all and one run has fewer than 0, expected 4"),
      InvalidArgument);
}

}  // namespace
}  // namespace fsdp

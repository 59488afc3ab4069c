// Tests random collectives (support/random_calls.h) on thread ranks.
#include "comm/support/random_calls.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/mesh_state.h"
#include "runtime/buffer.h"
#include "support/mismatch_text.h"
#include "support/run_ranks.h"

using namespace fsdp;

TEST_CASE("random calls give exact values wherever and however each rank's parts lie") {
  for (const int world : {2, 3, 5}) {
    for (const auto streams : {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
      CAPTURE(world);
      testing::run_ranks(world, [&](const Mesh& mesh) {
        CHECK(testing::random_calls(state_of(mesh).reduce_communicator(Axis::kShard), world, 20,
                                    streams) == std::vector<std::string>{});
      });
    }
  }
}

TEST_CASE(
    "two collectives of one size in another order on one rank are found, whatever their names") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    testing::Random common(seed);
    const int world = 2 + static_cast<int>(testing::below(common, 3));
    const int odd = static_cast<int>(testing::below(common, world));
    const std::string first = testing::random_name(common);
    std::string second = first;  // one byte is changed below
    char& differs = second[testing::below(common, static_cast<int64_t>(second.size()))];
    differs = differs == 'x' ? 'y' : 'x';
    const Operation operation =
        testing::kOperations[testing::below(common, testing::kOperations.size())];
    const int64_t numel = testing::below(common, 3000);
    const auto streams = testing::below(common, 2) == 0 ? testing::CpuStreams::kInline
                                                        : testing::CpuStreams::kThreaded;
    const auto errors = testing::errors_of_ranks(world, [&](const Mesh& mesh) {
      const Buffer sent = allocate_host(world * numel);
      const Buffer received = allocate_host(world * numel);
      const auto stream = testing::make_cpu_stream(streams, "random");
      const CollectivePart part{sent.data(), received.data(), numel, DType::kUInt8};
      std::pair names{first, second};
      if (mesh.rank() == odd) std::swap(names.first, names.second);
      for (const std::string& name : {names.first, names.second}) {
        const CollectiveTag tag = state_of(mesh).order().next(operation, numel, name);
        Communicator& communicator = state_of(mesh).reduce_communicator(Axis::kShard);
        if (operation == Operation::kAllGather) communicator.all_gather({&part, 1}, tag, *stream);
        if (operation == Operation::kReduceScatter) {
          communicator.reduce_scatter({&part, 1}, ReduceOp::kSum, tag, *stream);
        }
        if (operation == Operation::kAllReduce) {
          communicator.all_reduce({&part, 1}, ReduceOp::kSum, tag, *stream);
        }
        if (operation == Operation::kBroadcast) communicator.broadcast({&part, 1}, 0, tag, *stream);
      }
      stream->synchronize();
    });
    for (const std::string& error : errors) {
      CHECK(error.find(testing::kDisagree + "rank 0 issued ") == 0);
    }
  }
}

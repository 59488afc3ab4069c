#include "comm/simulated/simulated_communicator.h"

#include <doctest/doctest.h>

#include <array>
#include <chrono>

#include "comm/local/local_mesh.h"
#include "comm/simulated/ablated_communicator.h"
#include "runtime/buffer.h"
#include "support/cpu_streams.h"

namespace fsdp {
namespace {

using Values = std::array<float, 6>;

// A collective on rank 1 of three ranks, and its received data. The rank sends 1, 2, 3, 4, 5, 6.
struct Issued {
  explicit Issued(Communicator& of) : communicator(of) {}

  Values after(Operation operation, int64_t numel) {
    Values received{-1, -1, -1, -1, -1, -1};
    const CollectivePart part{sent.data(), received.data(), numel, DType::kFloat32};
    if (operation == Operation::kAllGather) communicator.all_gather({&part, 1}, {}, *stream);
    if (operation == Operation::kReduceScatter) {
      communicator.reduce_scatter({&part, 1}, ReduceOp::kSum, {}, *stream);
    }
    if (operation == Operation::kAllReduce) {
      communicator.all_reduce({&part, 1}, ReduceOp::kSum, {}, *stream);
    }
    if (operation == Operation::kBroadcast) communicator.broadcast({&part, 1}, 0, {}, *stream);
    stream->synchronize();
    return received;
  }

  Communicator& communicator;
  Values sent{1, 2, 3, 4, 5, 6};
  std::unique_ptr<Stream> stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "x");
};

TEST_CASE("peers alike have sent what this rank sends") {
  SimulatedCommunicator communicator({.rank = 1, .size = 3, .peers = SimulatedPeers::kAlike});
  Issued issued(communicator);
  CHECK(issued.after(Operation::kAllGather, 2) == Values{1, 2, 1, 2, 1, 2});
  CHECK(issued.after(Operation::kReduceScatter, 2) == Values{9, 12, -1, -1, -1, -1});
  CHECK(issued.after(Operation::kAllReduce, 3) == Values{3, 6, 9, -1, -1, -1});
  CHECK(issued.after(Operation::kBroadcast, 2) == Values{1, 2, -1, -1, -1, -1});
}

TEST_CASE("silent peers leave this rank's contribution alone") {
  SimulatedCommunicator communicator({.rank = 1, .size = 3, .peers = SimulatedPeers::kSilent});
  Issued issued(communicator);
  CHECK(issued.after(Operation::kAllGather, 2) == Values{-1, -1, 1, 2, -1, -1});
  CHECK(issued.after(Operation::kReduceScatter, 2) == Values{3, 4, -1, -1, -1, -1});
  CHECK(issued.after(Operation::kAllReduce, 3) == Values{1, 2, 3, -1, -1, -1});
  CHECK(issued.after(Operation::kBroadcast, 2) == Values{-1, -1, -1, -1, -1, -1});
}

TEST_CASE("absent peers leave memory as it is, and the stream busy as long as asked") {
  const auto wire_time = std::chrono::milliseconds(5);
  SimulatedCommunicator communicator(
      {.size = 3, .peers = SimulatedPeers::kAbsent, .wire_time = wire_time});
  Issued issued(communicator);
  for (const Operation operation : {Operation::kAllGather, Operation::kReduceScatter,
                                    Operation::kAllReduce, Operation::kBroadcast}) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(issued.after(operation, 2) == Values{-1, -1, -1, -1, -1, -1});
    const bool travels =
        operation == Operation::kAllGather || operation == Operation::kReduceScatter;
    CHECK((!travels || std::chrono::steady_clock::now() - start >= wire_time));
  }
}

TEST_CASE("a simulated group is split into itself") {
  SimulatedCommunicator communicator({.rank = 1, .size = 3});
  const auto group = communicator.split(7, 0);
  CHECK(group->rank() == 1);
  CHECK(group->size() == 3);
}

TEST_CASE("an ablated group has the ranks and the memory of a real one, and waits for nobody") {
  std::vector<MeshParts> parts = local_mesh(3, {});
  AblatedCommunicator communicator(std::move(parts[1].world.gather));
  CHECK(communicator.rank() == 1);
  CHECK(communicator.size() == 3);
  CHECK(communicator.allocate(100).bytes() == 100);
  Issued issued(communicator);
  CHECK(issued.after(Operation::kAllGather, 2) == Values{-1, -1, 1, 2, -1, -1});
  CHECK(issued.after(Operation::kReduceScatter, 2) == Values{3, 4, -1, -1, -1, -1});
  communicator.barrier({}, *issued.stream);
  communicator.abort("enough");
  CHECK(parts[0].control_plane->first_failure()->text.cause == "enough");
}

}  // namespace
}  // namespace fsdp

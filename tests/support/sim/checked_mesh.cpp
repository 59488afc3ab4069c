#include "support/sim/checked_mesh.h"

#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "support/forwarding_communicator.h"

namespace fsdp::testing {
namespace {

class CheckedCommunicator final : public ForwardingCommunicator {
  using Base = ForwardingCommunicator;

 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, const CheckedDevice& device)
      : Base(std::move(inner)), device_(device) {}

  Buffer allocate(int64_t bytes) override { return device_.allocate(bytes, MemoryKind::kDevice); }
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                  Stream& stream) override {
    const CheckedWork work(stream, "all_gather", touched(parts, 1, size()));
    Base::all_gather(parts, tag, stream);
  }
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) override {
    const CheckedWork work(stream, "reduce_scatter", touched(parts, size(), 1));
    Base::reduce_scatter(parts, op, tag, stream);
  }
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) override {
    const CheckedWork work(stream, "all_reduce", touched(parts, 1, 1));
    Base::all_reduce(parts, op, tag, stream);
  }
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) override {
    const CheckedWork work(stream, "broadcast", touched(parts, 1, 1));
    Base::broadcast(parts, root, tag, stream);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CheckedCommunicator>(Base::split(color, key), device_);
  }

 private:
  // A part sends `sent` and receives `received` times its numel.
  static std::vector<TouchedBytes> touched(std::span<const CollectivePart> parts, int sent,
                                           int received) {
    std::vector<TouchedBytes> bytes;
    for (const CollectivePart& part : parts) {
      const int64_t piece = part.numel * size_of(part.dtype);
      for (const SendRun& run : part.runs) {
        bytes.push_back({run.data, run.numel * size_of(part.dtype)});
      }
      if (part.runs.empty()) bytes.push_back({part.send, piece * sent});
      bytes.push_back({part.recv, piece * received, true});
    }
    return bytes;
  }

  const CheckedDevice& device_;
};

}  // namespace

std::vector<CheckedRank> checked_ranks(int world_size, const MeshOptions& options) {
  std::vector<CheckedRank> ranks;
  for (MeshParts& parts : local_mesh(world_size, options)) {
    auto device = std::make_unique<CheckedDevice>();
    parts.device = device.get();
    for (auto* each :
         {&parts.control, &parts.world.gather, &parts.world.reduce, &parts.shard.gather,
          &parts.shard.reduce, &parts.replicate.gather, &parts.replicate.reduce}) {
      if (!*each) continue;
      *each = std::make_unique<CheckedCommunicator>(std::move(*each), *device);
    }
    ranks.push_back({std::move(device), Mesh(std::make_shared<MeshState>(std::move(parts)))});
  }
  return ranks;
}

}  // namespace fsdp::testing

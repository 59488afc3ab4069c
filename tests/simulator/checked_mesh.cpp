#include "simulator/checked_mesh.h"

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
  void issue(const Collective& collective, Stream& stream) override {
    const CheckedWork work(stream, name_of(collective.operation), touched(collective));
    Base::issue(collective, stream);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CheckedCommunicator>(Base::split(color, key), device_);
  }

 private:
  std::vector<TouchedBytes> touched(const Collective& collective) const {
    std::vector<TouchedBytes> bytes;
    for (const CollectivePart& part : collective.parts) {
      const int64_t piece = part.numel * size_of(part.dtype);
      for (const SendRun& run : part.runs) {
        bytes.push_back({run.data, run.numel * size_of(part.dtype)});
      }
      if (part.runs.empty()) bytes.push_back({part.send, piece * collective.pieces_sent(size())});
      bytes.push_back({part.recv, piece * collective.pieces_received(size()), true});
    }
    return bytes;
  }

  const CheckedDevice& device_;
};

}  // namespace

std::vector<CheckedRank> checked_ranks(int world_size, const MeshOptions& options) {
  return checked_ranks(local_mesh(world_size, options));
}

std::vector<CheckedRank> checked_ranks(std::vector<MeshParts> threads) {
  std::vector<CheckedRank> ranks;
  for (MeshParts& parts : threads) {
    auto device = std::make_unique<CheckedDevice>();
    parts.device = device.get();
    for (auto* each :
         {&parts.control, &parts.world.gather, &parts.world.reduce, &parts.shard.gather,
          &parts.shard.reduce, &parts.replicate.gather, &parts.replicate.reduce}) {
      if (!*each) continue;
      *each = std::make_unique<CheckedCommunicator>(std::move(*each), *device);
    }
    ranks.push_back({std::move(device), mesh_of(std::move(parts))});
  }
  return ranks;
}

}  // namespace fsdp::testing

#include "support/sim/checked_mesh.h"

#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "comm/ranks_view.h"

namespace fsdp::testing {
namespace {

class CheckedCommunicator final : public Communicator {
 public:
  CheckedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<RaceCheck> check)
      : inner_(std::move(inner)), check_(std::move(check)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Buffer allocate(int64_t bytes) override { return known_to(check_, inner_->allocate(bytes)); }
  RanksView map_ranks(const void* mine, int64_t bytes) override {
    return inner_->map_ranks(mine, bytes);
  }

  void all_gather(std::span<const CollectivePart> parts, CollectiveTag tag,
                  Stream& stream) override {
    tell("all_gather", parts, 1, size(), stream);
    inner_->all_gather(parts, tag, stream);
  }
  void reduce_scatter(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                      Stream& stream) override {
    tell("reduce_scatter", parts, size(), 1, stream);
    inner_->reduce_scatter(parts, op, tag, stream);
  }
  void all_reduce(std::span<const CollectivePart> parts, ReduceOp op, CollectiveTag tag,
                  Stream& stream) override {
    tell("all_reduce", parts, 1, 1, stream);
    inner_->all_reduce(parts, op, tag, stream);
  }
  void broadcast(std::span<const CollectivePart> parts, int root, CollectiveTag tag,
                 Stream& stream) override {
    tell("broadcast", parts, 1, 1, stream);
    inner_->broadcast(parts, root, tag, stream);
  }
  void barrier(CollectiveTag tag, Stream& stream) override { inner_->barrier(tag, stream); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CheckedCommunicator>(inner_->split(color, key), check_);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  // A part sends `sent` and receives `received` times its numel.
  static void tell(std::string_view what, std::span<const CollectivePart> parts, int sent,
                   int received, Stream& stream) {
    std::vector<TouchedBytes> bytes;
    for (const CollectivePart& part : parts) {
      const int64_t piece = part.numel * size_of(part.dtype);
      for (const SendRun& run : part.runs) {
        bytes.push_back({run.data, run.numel * size_of(part.dtype)});
      }
      if (part.runs.empty()) bytes.push_back({part.send, piece * sent});
      bytes.push_back({part.recv, piece * received, true});
    }
    touch(stream, what, bytes);
  }

  const std::unique_ptr<Communicator> inner_;
  const std::shared_ptr<RaceCheck> check_;
};

}  // namespace

std::vector<CheckedRank> checked_ranks(int world_size) {
  std::vector<CheckedRank> ranks;
  for (MeshParts& parts : local_mesh(world_size, {})) {
    auto device = std::make_unique<CheckedDevice>();
    parts.device = device.get();
    for (auto* each : {&parts.control, &parts.replicate.gather, &parts.replicate.reduce,
                       &parts.shard.gather, &parts.shard.reduce}) {
      *each = std::make_unique<CheckedCommunicator>(std::move(*each), device->shared_check());
    }
    ranks.push_back({std::move(device), Mesh(std::make_shared<MeshState>(std::move(parts)))});
  }
  return ranks;
}

}  // namespace fsdp::testing

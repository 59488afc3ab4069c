#include "support/simulated_mesh.h"

#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "comm/mesh_state.h"
#include "runtime/buffer.h"
#include "runtime/stream.h"

namespace fsdp::testing {
namespace {

class SimulatedCommunicator final : public Communicator {
 public:
  SimulatedCommunicator(int world_size, bool echoes, std::chrono::nanoseconds wire_time)
      : world_size_(world_size), echoes_(echoes), wire_time_(wire_time) {}

  int rank() const override { return 0; }
  int size() const override { return world_size_; }
  Buffer allocate(int64_t bytes) override { return allocate_host(bytes); }
  void all_gather(std::span<const CollectivePart> parts, CollectiveTag, Stream& stream) override {
    if (!echoes_) return travel(stream);
    for (const CollectivePart& part : parts) {
      const int64_t bytes = part.numel * size_of(part.dtype);
      for (int rank = 0; rank < world_size_; ++rank) {
        std::memmove(static_cast<std::byte*>(part.recv) + rank * bytes, part.send, bytes);
      }
    }
  }
  void reduce_scatter(std::span<const CollectivePart>, ReduceOp, CollectiveTag,
                      Stream& stream) override {
    travel(stream);
  }
  void all_reduce(std::span<const CollectivePart>, ReduceOp, CollectiveTag, Stream&) override {}
  void broadcast(std::span<const CollectivePart>, int, CollectiveTag, Stream&) override {}
  void barrier(CollectiveTag, Stream&) override {}
  void abort(std::string_view) noexcept override {}

 private:
  void travel(Stream& stream) const {
    if (wire_time_.count() == 0) return;
    cpu_stream(stream).run([time = wire_time_] { std::this_thread::sleep_for(time); });
  }

  int world_size_;
  bool echoes_;
  std::chrono::nanoseconds wire_time_;
};

using Channels = std::array<std::unique_ptr<Communicator>, kChannels>;
void replace_channels(const Mesh& mesh, Channels channels);

// A mesh takes no foreign communicators, and for this alone it should not: an explicit
// instantiation may name a private member.
template <auto kState>
struct MeshParts {
  friend void replace_channels(const Mesh& mesh, Channels channels) {
    (mesh.*kState)->channels = std::move(channels);
  }
};
template struct MeshParts<&Mesh::state_>;

}  // namespace

Mesh simulated_mesh(int world_size, std::chrono::nanoseconds wire_time) {
  Mesh mesh = Mesh::local(world_size).front();
  Channels channels;
  for (int kind = 0; kind < kChannels; ++kind) {
    const bool echoes = static_cast<Channel>(kind) == Channel::kControl;
    channels[kind] = std::make_unique<SimulatedCommunicator>(world_size, echoes, wire_time);
  }
  replace_channels(mesh, std::move(channels));
  return mesh;
}

}  // namespace fsdp::testing

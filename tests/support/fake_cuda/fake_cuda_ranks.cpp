#include "support/fake_cuda/fake_cuda_ranks.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/local/local_mesh.h"
#include "comm/mesh_state.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::testing {
namespace {

class FakeCudaDevice final : public Device {
 public:
  std::string_view name() const override { return "cuda:0"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override {
    return make_cpu_stream(*this, {.name = options.name, .runs_beside = false});
  }
  Stream& compute_stream(void* native) const override {
    const std::lock_guard lock(mutex_);
    auto& stream = compute_streams_[native];
    if (!stream) stream = make_stream({.name = "compute"});
    return *stream;
  }
  Buffer allocate(int64_t bytes, MemoryKind /*kind*/) const override {
    return allocate_host(bytes);
  }
  const kernels::KernelTable* kernels() const override { return nullptr; }

 private:
  mutable std::mutex mutex_;
  mutable std::map<void*, std::unique_ptr<Stream>> compute_streams_;
};

}  // namespace

std::vector<Mesh> fake_cuda_ranks(int world) {
  static const FakeCudaDevice device;  // outlives every mesh, and all tensors in its memory
  std::vector<Mesh> ranks;
  for (MeshParts& parts : local_mesh(world, {}, &device)) {
    ranks.push_back(mesh_of(std::move(parts)));
  }
  return ranks;
}

RunRanksOptions on_fake_cuda() {
  return {.make = [](int world, const MeshOptions& /*options*/) {
    std::vector<WatchedRank> ranks;
    for (Mesh& mesh : fake_cuda_ranks(world)) ranks.push_back({nullptr, std::move(mesh)});
    return ranks;
  }};
}

}  // namespace fsdp::testing

#include "programs/doctor/loopback.h"

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/communicator.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "kernels/cast_pack.h"
#include "runtime/device.h"

namespace fsdp::doctor {
namespace {

constexpr int64_t kNumel = 1 << 14;  // elements per rank
constexpr int64_t kFloatBytes = sizeof(float);

// Returns integers whose fp32 sums over hundreds of ranks are exact.
float value_of(int rank, int64_t i) { return static_cast<float>(i % 251 + 256 * rank); }

// The buffers of one rank, and the operations that it tries.
class RankTrial {
 public:
  explicit RankTrial(const Mesh& mesh)
      : mesh_(mesh),
        device_(state_of(mesh).device()),
        whole_(device_.allocate(mesh.world_size() * kNumel * kFloatBytes, MemoryKind::kDevice)),
        reduced_(device_.allocate(kNumel * kFloatBytes, MemoryKind::kDevice)),
        given_(device_.allocate(kNumel * kFloatBytes, MemoryKind::kPinned)),
        stream_(device_.make_stream({.name = "loopback"})) {}

  // Writes the doubled values to the slice of this rank in `whole_`.
  void try_kernel() {
    auto* const given = static_cast<float*>(given_.data());
    for (int64_t i = 0; i < kNumel; ++i) given[i] = value_of(mesh_.rank(), i);
    void* const own = whole_.at(mesh_.rank() * kNumel * kFloatBytes);
    // The kernel reads device memory, so the values are first copied to reduced_, which is unused
    // until the reduce_scatter.
    stream_->copy(reduced_.data(), given, kNumel * kFloatBytes);
    const kernels::CastRun run{.source = reduced_.data(), .destination = own, .numel = kNumel};
    kernels::cast_pack(*stream_, {&run, 1}, 2.0F);
    require_values("a kernel", own, kNumel,
                   [&](int64_t i) { return 2 * value_of(mesh_.rank(), i); });
  }

  void try_all_gather() {
    const CollectivePart part{.send = whole_.at(mesh_.rank() * kNumel * kFloatBytes),
                              .recv = whole_.data(),
                              .numel = kNumel};
    state_of(mesh_)
        .gather_communicator(Axis::kWorld)
        .all_gather({&part, 1}, next_tag(Operation::kAllGather), *stream_);
    require_values("all_gather", whole_.data(), mesh_.world_size() * kNumel, [](int64_t i) {
      return 2 * value_of(static_cast<int>(i / kNumel), i % kNumel);
    });
  }

  // Reduces `whole_`. After the all_gather every rank has the same values in `whole_`.
  void try_reduce_scatter() {
    const CollectivePart part{.send = whole_.data(), .recv = reduced_.data(), .numel = kNumel};
    state_of(mesh_)
        .reduce_communicator(Axis::kWorld)
        .reduce_scatter({&part, 1}, ReduceOp::kSum, next_tag(Operation::kReduceScatter), *stream_);
    require_values("reduce_scatter", reduced_.data(), kNumel, [&](int64_t i) {
      return static_cast<float>(2 * mesh_.world_size()) * value_of(mesh_.rank(), i);
    });
  }

 private:
  CollectiveTag next_tag(Operation operation) {
    return state_of(mesh_).order().next(operation, kNumel, "loopback");
  }

  void require_values(std::string_view work, const void* at, int64_t numel,
                      const std::function<float(int64_t i)>& wanted) {
    std::vector<float> got(static_cast<size_t>(numel));
    stream_->read(got.data(), at, numel * kFloatBytes);
    for (int64_t i = 0; i < numel; ++i) {
      const float value = got[static_cast<size_t>(i)];
      if (value == wanted(i)) continue;
      throw DeviceError(
          {.what = fmt::format("{} on {} left {} in element {}, expected {}", work, device_.name(),
                               value, i, wanted(i)),
           .hint = "look for errors of the GPU in nvidia-smi and dmesg (Xid); if the values come "
                   "from another GPU, set NCCL_P2P_DISABLE=1 to test the link between the GPUs"});
    }
  }

  const Mesh& mesh_;
  const Device& device_;
  const Buffer whole_, reduced_, given_;
  const std::unique_ptr<Stream> stream_;  // last, so destroyed before the buffers
};

void try_rank(const Mesh& mesh) {
  state_of(mesh).device().make_current();
  RankTrial trial(mesh);
  trial.try_kernel();
  if (mesh.world_size() == 1) return;
  trial.try_all_gather();
  trial.try_reduce_scatter();
}

}  // namespace

void run_loopback(std::vector<Mesh> ranks) {
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (Mesh& rank : ranks) {
    threads.emplace_back([&mutex, &first, mesh = std::move(rank)]() mutable {
      try {
        try_rank(mesh);
      } catch (const std::exception& error) {
        // The failure is stored before the abort, because the abort makes the other ranks throw.
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        mesh.abort(error.what());
      }
      const Mesh finished = std::move(mesh);  // destroyed in the rank's own thread
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace fsdp::doctor

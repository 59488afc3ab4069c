// GradientTable copies or adds a unit's gradients to their destinations. It handles small gradients
// together.
//
// [Note: captures in tables] On a GPU the launch that copies a bias costs more than the copy
// itself, on the host and on the device. So a small gradient waits until one of three events: the
// next large gradient is copied, kMost gradients wait, or the unit closes. Then one launch copies
// all waiting gradients. The table holds their tensors until then. On the CPU a launch is a
// function call, so each gradient is copied at once, while it is in the caches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/accumulate.h"
#include "shard/unit_context.h"

namespace fsdp {

// Not thread-safe: the engine's mutex guards it.
class GradientTable {
 public:
  // Gradients with fewer bytes than kSmallBytes wait for a launch that copies several of them. At
  // most kMost gradients wait.
  static constexpr int64_t kSmallBytes = int64_t{256} << 10;
  static constexpr size_t kMost = 64;

  explicit GradientTable(const UnitContext& unit) : unit_(unit) {}

  struct Place {
    std::byte* at = nullptr;
    DType dtype = DType::kFloat32;
    bool overwrites = true;  // if false, the gradient is added to the value in the destination
  };
  // Copies or adds the gradient of `parameter` to its destination, now or later. The gradient must
  // be strided and have a floating type. Errors: those of issue.
  void add(int parameter, const at::Tensor& gradient, const Place& place);
  // Issues the copies of all waiting gradients on the compute stream. Errors: StateError if a
  // gradient was changed in place while it waited.
  void issue();
  // Drops all waiting gradients.
  void drop() { waiting_.clear(); }

 private:
  static constexpr int64_t kNoVersion = -1;
  struct Waiting {
    int parameter = 0;
    at::Tensor gradient;
    int64_t version = kNoVersion;  // version of the tensor when it arrived
    kernels::AccumulateRun run;
  };
  // Returns true if a gradient with this destination is waiting.
  bool has(const std::byte* place) const;
  void add_in_order(int parameter, const at::Tensor& gradient, const kernels::AccumulateRun& run);
  void add_strided(int parameter, const at::Tensor& gradient, const Place& place) const;
  // Copies all runs in one launch. `first` is the parameter of the first run. It names the trace
  // span if there is only one run.
  void copy(std::span<const kernels::AccumulateRun> runs, int first) const;
  void require_unchanged(const Waiting& waiting) const;

  const UnitContext& unit_;
  std::vector<Waiting> waiting_;
  const Stream* captured_on_ = nullptr;  // compute stream on which the waiting gradients arrived
};

}  // namespace fsdp

// UnitUnderTest makes a unit on a thread rank and without autograd, for tests of the unit's
// members. The unit has the parameters 'a' (3 by 5), 'b' (130) and 'frozen' (7). Each element has a
// different value.
#pragma once

#include <memory>
#include <vector>

#include "libtorch/torch_compat.h"
#include "shard/precision.h"
#include "shard/shard_unit.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

inline std::vector<ParameterSpec> unit_specs(DType dtype = DType::kFloat32) {
  return {{.fqn = "a", .shape = {3, 5}, .strides = {5, 1}, .dtype = dtype, .numel = 15},
          {.fqn = "b", .shape = {130}, .strides = {1}, .dtype = dtype, .numel = 130},
          {.fqn = "frozen",
           .shape = {7},
           .strides = {1},
           .dtype = dtype,
           .trainable = false,
           .numel = 7}};
}

// Returns the initial value of an element, exact in bfloat16 too.
inline float whole_value(int parameter, int64_t element) {
  return static_cast<float>(40 * (parameter + 1) + element % 40);
}

// Returns device memory as a tensor. The code of a test must not access this memory in another way.
inline at::Tensor on_device(float* data, int64_t numel) {
  return torch_compat::wrap(data, numel, DType::kFloat32, at::kCPU);
}

inline std::vector<float> values_of(float* data, int64_t numel) {
  const at::Tensor host = on_device(data, numel).clone();
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + numel};
}

struct UnitUnderTest {
  explicit UnitUnderTest(const Mesh& mesh, const Options& options = {},
                         std::vector<ParameterSpec> specs = unit_specs())
      : shared(mesh, options),
        collectives(collectives_for(shared, options.strategy)),
        reduce_dtype(Precision::of(options.mixed_precision, "").reduce),
        layout(std::move(specs), collectives.main_ranks()) {}

  // Returns this rank's slices of the initial values.
  std::vector<Buffer> slices() {
    std::vector<Buffer> result;
    const int rank = collectives.main_rank(shared.mesh.rank());
    for (size_t s = 0; s < layout.segments().size(); ++s) {
      const int segment = static_cast<int>(s);
      result.push_back(shared.memory.allocate(layout.segments()[s].slice_numel * 4));
      shared.memory.ledger.hold(result.back().bytes());
      const at::Tensor values = torch::zeros({layout.segments()[s].slice_numel});
      auto* data = values.mutable_data_ptr<float>();
      for (const Interval& interval : layout.intervals(segment, rank)) {
        for (int64_t i = 0; i < interval.numel; ++i) {
          data[interval.offset + i] = whole_value(interval.parameter, interval.begin + i);
        }
      }
      on_device(static_cast<float*>(result.back().data()), values.numel()).copy_(values);
    }
    shared.streams.compute->synchronize();
    return result;
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> result;
    for (const ParameterSpec& spec : layout.parameters()) {
      result.push_back(
          torch::zeros(spec.shape, scalar_type_of(spec.dtype)).set_requires_grad(spec.trainable));
    }
    return result;
  }
  UnitContext context() { return {"layers.0", shared, collectives, layout, reduce_dtype}; }
  std::unique_ptr<ShardUnit> unit() {
    return std::make_unique<ShardUnit>(context(), tensors(), slices());
  }

  ShardContext shared;
  UnitCollectives collectives;
  DType reduce_dtype;
  ShardLayout layout;
};

// Returns true if the values of a bound parameter equal whole_value + added.
inline bool shows(const at::Tensor& parameter, int index, float added = 0) {
  const at::Tensor values = parameter.detach().to(torch::kFloat).flatten();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (values[i].item<float>() != whole_value(index, i) + added) return false;
  }
  return true;
}

}  // namespace fsdp::testing

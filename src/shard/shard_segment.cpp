#include "shard/shard_segment.h"

#include <ATen/core/grad_mode.h>

namespace fsdp {

ShardUnit::Segment::Segment(const SegmentLayout& segment_layout, Buffer main_shard,
                            const std::string& message)
    : layout(segment_layout),
      main(std::move(main_shard)),
      main_tensor(torch_compat::wrap(main.data(), layout.slice_numel, DType::kFloat32, at::kCPU)),
      storage(layout.bytes(), at::kCPU, message) {}

void ShardUnit::Segment::bind(const ShardLayout& unit_layout, std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  for (const PlacedParameter& placed : layout.parameters) {
    const ParameterSpec& spec = unit_layout.parameters()[placed.parameter];
    // set_data keeps the TensorImpl: module members, names, requires_grad and version counter stay.
    parameters[placed.parameter].set_data(
        storage.view(layout.dtype, placed.offset, spec.shape, spec.strides));
  }
}

}  // namespace fsdp

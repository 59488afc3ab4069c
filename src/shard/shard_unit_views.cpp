// What optimizers and users get of a ShardUnit: flat segments, and views of the main shards and
// gradients, parameter by parameter.
#include <ATen/core/grad_mode.h>

#include "shard/shard_segment.h"
#include "shard/shard_unit.h"

namespace fsdp {

const std::vector<at::Tensor>& ShardUnit::local_views() {
  if (!local_views_.empty()) return local_views_;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters().size(); ++i) {
    const Segment& segment = *segments_[layout_.segment_of(static_cast<int>(i))];
    // A view of the main shard shares its version counter: in-place optimizers are noticed.
    at::Tensor view = segment.main_tensor.narrow(0, local_[i].offset, local_[i].numel);
    view.set_requires_grad(segment.layout.trainable);
    local_views_.push_back(std::move(view));
  }
  for (const auto& segment : segments_) segment->seen_content = segment->content();
  if (!main_gradients_.empty()) attach_gradient_views();
  return local_views_;
}

// Views that were taken to load or print values and let go since need no digest a forward. With a
// main gradient they stay: their `.grad` may be the user's.
void ShardUnit::forget_unused_views() {
  if (local_views_.empty() || !main_gradients_.empty()) return;
  std::vector<size_t> own(segments_.size(), 1);  // tensors on a main shard: main_tensor and views
  for (size_t i = 0; i < local_views_.size(); ++i) {
    if (local_views_[i].use_count() > 1) return;
    ++own[layout_.segment_of(static_cast<int>(i))];
  }
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i]->main_tensor.storage().use_count() > own[i]) return;  // a view of a view
  }
  local_views_.clear();
}

void ShardUnit::attach_gradient_views() {
  if (main_gradients_.empty()) return;
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const int segment = layout_.segment_of(static_cast<int>(i));
    if (!segments_[segment]->layout.trainable || local_views_[i].mutable_grad().defined()) continue;
    // Frozen since: plain optimizers skip what has no gradient.
    if (!parameters()[i].requires_grad()) continue;
    local_views_[i].mutable_grad() = main_gradient_view(static_cast<int>(i));
  }
}

// This rank's part of a parameter's main gradient. The view keeps the memory, but says nothing any
// more once the gradient was given back.
at::Tensor ShardUnit::main_gradient_view(int parameter) const {
  const Interval& local = local_[parameter];
  Slot* slot = main_gradients_[layout_.segment_of(parameter)];
  if (slot == nullptr) return torch_compat::wrap(nullptr, 0, DType::kFloat32, at::kCPU);
  struct Held {
    Mesh mesh;  // first, hence destroyed last
    std::shared_ptr<const Slot> slot;
  };
  return torch_compat::wrap(static_cast<float*>(slot->buffer.data()) + local.offset, local.numel,
                            DType::kFloat32, at::kCPU,
                            std::make_shared<const Held>(lanes_.mesh, slot->shared_from_this()));
}

// What torch::optim or the user did to `.grad` since the views were attached: cleared ones become
// zero, or hand the main gradient back if all were cleared; replaced ones are copied in.
void ShardUnit::adopt_user_gradients() {
  if (local_views_.empty() || main_gradients_.empty()) return;
  bool any = false;
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const bool trainable = segments_[layout_.segment_of(static_cast<int>(i))]->layout.trainable;
    any = any || (trainable && local_views_[i].mutable_grad().defined());
  }
  if (!any) return zero_grad();
  const at::NoGradGuard no_grad;
  lanes_.reduce_stream->synchronize();  // the main gradient may still be written there
  for (size_t i = 0; i < local_views_.size(); ++i) {
    const int segment = layout_.segment_of(static_cast<int>(i));
    if (!segments_[segment]->layout.trainable || local_[i].numel == 0) continue;
    float* place = static_cast<float*>(main_gradients_[segment]->buffer.data()) + local_[i].offset;
    at::Tensor& gradient = local_views_[i].mutable_grad();
    if (gradient.defined() && gradient.const_data_ptr() == place) continue;
    at::Tensor here = main_gradient_view(static_cast<int>(i));
    if (gradient.defined()) {
      here.copy_(gradient);
    } else {
      here.zero_();
    }
    if (parameters()[i].requires_grad()) gradient = here;
  }
}

std::vector<MainSegment> ShardUnit::main_segments() {
  adopt_user_gradients();
  check_not_spoiled();
  std::vector<MainSegment> result;
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = *segments_[i];
    if (!segment.layout.trainable) continue;
    Slot* gradient = main_gradients_.empty() ? nullptr : main_gradients_[i];
    result.push_back(
        {.segment = static_cast<int>(i),
         .param = static_cast<float*>(segment.main.data()),
         .grad = gradient != nullptr ? static_cast<float*>(gradient->buffer.data()) : nullptr,
         .resident_copy = segment.resident.data(),
         .copy_dtype = segment.layout.dtype,
         .numel = segment.layout.slice_numel,
         .intervals = layout_.intervals(static_cast<int>(i), lanes_.shard_rank())});
  }
  return result;
}

}  // namespace fsdp

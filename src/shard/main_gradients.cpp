#include "shard/main_gradients.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "fsdp/error.h"
#include "kernels/fill.h"
#include "shard/parameter_bindings.h"

namespace fsdp {

void refuse_cleared_gradients(std::string_view fqn, std::string cause) {
  throw StateError({.what = "only some gradients of the unit were cleared",
                    .where = name_of_unit(fqn),
                    .cause = std::move(cause),
                    .hint = "call zero_grad of the optimizer or of the engine"});
}

MainGradients::MainGradients(const UnitContext& unit, MainShards& main,
                             const std::vector<at::Tensor>& parameters)
    : unit_(unit),
      main_(main),
      parameters_(parameters),
      cleared_(parameters.size(), 0),
      slots_(unit.segments(), nullptr),
      runs_(unit.segments()) {}

// Users may hold views of main gradients after the engine is destroyed. The views keep the memory
// alive. But the trap (touch_trap.h) must no longer report operators on them to the unit, which no
// longer exists.
MainGradients::~MainGradients() {
  forget_runs();
  if (nothing_) nothing_->forget_owner();
}

// Drops the tensors that are the bases of the views. From now on the trap (touch_trap.h) reports no
// operators on views that users still hold. Later views get a new base.
void MainGradients::forget_runs() {
  for (at::Tensor& run : runs_) {
    if (run.defined()) touch_trap::forget_owner(run);
    run.reset();
  }
}

int64_t MainGradients::numel(int segment) const {
  return unit_.piece(unit_.collectives.row.gradients, segment).numel;
}

std::byte* MainGradients::at(int segment, int64_t element) const {
  return slots_[segment]->at(element * size_of(DType::kFloat32));
}

// Gradients may be sharded over fewer ranks than optimizer state. In this case this rank's
// gradients contain those of its slice and of other slices.
float* MainGradients::slice(int segment) const {
  const int64_t begin = unit_.piece(unit_.collectives.row.optimizer, segment).begin -
                        unit_.piece(unit_.collectives.row.gradients, segment).begin;
  return reinterpret_cast<float*>(at(segment, begin));
}

std::byte* MainGradients::place_of(int segment, int64_t numel) const {
  return numel == this->numel(segment) ? at(segment, 0)
                                       : reinterpret_cast<std::byte*>(slice(segment));
}

void MainGradients::take(Stream& stream) {
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!unit_.segment(i).trainable) continue;
    slots_[i] = unit_.shared.main->gradients.acquire(numel(i) * size_of(DType::kFloat32));
    if (has(i)) stream.wait(slots_[i]->released);  // wait 9
  }
  state_ = MainGradientState::kReady;
}

void MainGradients::give_back() {
  // If a backward has failed, one of its reductions may still write the memory. So the release of
  // the slots is recorded on the last stream that writes main gradients. Reads by the compute
  // stream need no event, because later reductions wait for compute (wait 5).
  ShardContext& shared = unit_.shared;
  forget_runs();
  for (Slot*& slot : slots_) {
    if (slot == nullptr) continue;
    shared.main->last_of_reduce().record(slot->released);
    shared.main->gradients.release(slot);
    slot = nullptr;
  }
  state_ = MainGradientState::kNone;
  await_across_ = false;
  are_guarded_ = false;
  forget_cleared();
  if (!main_.has_views()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    main_.gradient_of(static_cast<int>(i)) = at::Tensor();
  }
}

void MainGradients::clear(std::span<const int> parameters) {
  for (const int parameter : parameters) cleared_[parameter] = 1;
  if (!are_ready()) return;
  std::vector<kernels::FillRun> runs;
  for (const int parameter : parameters) {
    if (main_.has_views()) main_.gradient_of(parameter) = at::Tensor();
    const int segment = unit_.layout.segment_of(parameter);
    if (!has(segment)) continue;
    const PlacedParameter& placed = unit_.layout.place_of(parameter);
    const Piece here = unit_.piece(unit_.collectives.row.gradients, segment);
    const int64_t begin = std::max(placed.offset, here.begin);
    const int64_t end = std::min(placed.offset + placed.numel, here.begin + here.numel);
    if (begin < end) runs.push_back({at(segment, begin - here.begin), end - begin});
  }
  // With offload the host fills the memory at once, so it first waits for the download stream,
  // which may still add to the memory.
  unit_.shared.main->settle();
  kernels::fill_zero(unit_.shared.main->stream(), runs);
}

void MainGradients::note_added() {
  ++additions_;
  forget_cleared();
}

bool MainGradients::is_trainable(int parameter) const {
  return unit_.segment(unit_.layout.segment_of(parameter)).trainable;
}

// Returns a view of this rank's part of a parameter's gradient. The view keeps the memory alive,
// but its values are undefined once the gradient is released, because the slot is reused.
at::Tensor MainGradients::view(int parameter) {
  const int segment = unit_.layout.segment_of(parameter);
  const at::Device device = unit_.shared.main->torch_device();
  if (!has(segment)) return torch_compat::wrap(nullptr, 0, DType::kFloat32, device);
  struct Held {
    Mesh mesh;  // declared first, so destroyed last
    std::shared_ptr<const Slot> slot;
  };
  at::Tensor& run = runs_[segment];
  if (!run.defined()) {
    run = torch_compat::wrap_watched(
        slice(segment), unit_.segment(segment).slice_numel, device,
        unit_.watch(touch_trap::Holds::kGradients),
        std::make_shared<const Held>(unit_.shared.mesh, slots_[segment]->shared_from_this()));
  }
  const Interval& local = main_.local(parameter);
  at::Tensor view = torch_compat::view_of(run.storage(), local.offset, local.numel, device);
  if (unit_.shared.watches_shards) touch_trap::watch(view);
  return view;
}

void MainGradients::attach_views() {
  if (!are_ready() || !main_.has_views()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    at::Tensor& gradient = main_.gradient_of(parameter);
    if (!is_trainable(parameter) || (gradient.defined() && !is_guard(parameter))) continue;
    if (is_cleared(parameter)) continue;
    // The user may have frozen the parameter after the backward. Then it gets no `.grad`, so
    // optimizers skip it.
    if (!parameters_[i].requires_grad()) continue;
    gradient = view(parameter);
  }
  are_guarded_ = false;
}

bool MainGradients::are_cleared() const {
  if (!are_ready() || !main_.has_views()) return false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (is_trainable(parameter) && main_.gradient_of(parameter).defined()) return false;
  }
  return true;
}

void MainGradients::guard_views() {
  if (are_ready() || !main_.has_views()) return;
  guards_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    at::Tensor& gradient = main_.gradient_of(parameter);
    if (!is_trainable(parameter) || !parameters_[i].requires_grad() || gradient.defined()) continue;
    if (!guards_[i].defined()) guards_[i] = make_guard(main_.local(parameter).numel);
    gradient = guards_[i];
  }
  are_guarded_ = true;
}

// All guards are views of one storage without memory. A guard has the size of the view whose
// `.grad` it is, so that operators fail with the guard's message and not with a mismatch of sizes.
at::Tensor MainGradients::make_guard(int64_t numel) {
  if (!nothing_) {
    int64_t most = 0;
    for (int i = 0; i < unit_.segments(); ++i) most = std::max(most, main_.bytes(i));
    const std::string_view why =
        unit_.shared.updates_in_backward
            ? "were used by the update in backward (Options::optimizer_in_backward); hint: read no "
              "gradients, or set optimizer_in_backward = false"
            : "wait to be reduced; hint: run the last backward of a step outside of GradSync, or "
              "call zero_grad";
    nothing_.emplace(most, unit_.shared.main->torch_device(),
                     fmt::format("fsdp: gradients of {} {}", name_of_unit(unit_.fqn), why),
                     unit_.watch(touch_trap::Holds::kGradients));
  }
  const std::array<int64_t, 1> sizes{numel}, strides{1};
  at::Tensor guard = nothing_->view(DType::kFloat32, 0, sizes, strides);
  if (unit_.shared.watches_shards) touch_trap::watch(guard);
  return guard;
}

bool MainGradients::is_guard(int parameter) const {
  return !guards_.empty() && guards_[parameter].defined() &&
         main_.gradient_of(parameter).is_same(guards_[parameter]);
}

// The user's program may have called zero_grad, set one `.grad` to null, or assigned another
// tensor. `.grad` is compared by pointer. In-place changes need no adoption: `.grad` is the main
// gradient.
bool MainGradients::adopt_user_gradients(bool kept) {
  if (!main_.has_views() || (!are_ready() && !are_guarded_)) return true;
  size_t there = 0, gone = 0, replaced = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (!is_trainable(parameter)) continue;
    if (main_.gradient_of(parameter).defined()) {
      ++there;
      replaced += are_guarded_ && !is_guard(parameter) ? 1 : 0;
    } else if (parameters_[i].requires_grad() && !is_cleared(parameter)) {
      ++gone;
    }
  }
  // No `.grad` is defined, so the user has cleared all gradients. The caller drops them all,
  // including kept gradients, for which guards were set.
  if (there == 0) {
    are_guarded_ = false;
    return false;
  }
  if (kept && (gone > 0 || replaced > 0)) {
    refuse_cleared_gradients(unit_.fqn, "its other gradients wait to be reduced (GradSync)");
  }
  if (!are_ready()) return true;
  const at::NoGradGuard no_grad;
  const touch_trap::Unseen unseen;  // these operators are the engine's own
  // LibTorch's operators below write main gradients, which a reduction may still write.
  unit_.shared.main->last_of_reduce().synchronize();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const Interval& local = main_.local(parameter);
    if (!is_trainable(parameter) || local.numel == 0) continue;
    const float* place = slice(unit_.layout.segment_of(parameter)) + local.offset;
    at::Tensor& gradient = main_.gradient_of(parameter);
    if (gradient.defined() ? gradient.const_data_ptr() == place : is_cleared(parameter)) continue;
    at::Tensor here = view(parameter);
    if (gradient.defined()) {
      here.copy_(gradient);
    } else {
      here.zero_();
    }
    if (parameters_[i].requires_grad()) gradient = here;
  }
  return true;
}

}  // namespace fsdp

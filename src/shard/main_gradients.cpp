#include "shard/main_gradients.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>

#include "shard/torch_compat.h"

namespace fsdp {

MainGradients::MainGradients(const UnitContext& unit, MainShards& main,
                             const std::vector<at::Tensor>& parameters)
    : unit_(unit), main_(main), parameters_(parameters), slots_(unit.segments(), nullptr) {}

int64_t MainGradients::numel(int segment) const {
  return unit_.piece(unit_.moves.row.gradients, segment).numel;
}

std::byte* MainGradients::at(int segment, int64_t element) const {
  return slots_[segment]->at(element * size_of(DType::kFloat32));
}

float* MainGradients::slice(int segment) const {
  const int64_t begin = unit_.piece(unit_.moves.row.optimizer, segment).begin -
                        unit_.piece(unit_.moves.row.gradients, segment).begin;
  return reinterpret_cast<float*>(at(segment, begin));
}

std::byte* MainGradients::place_of(int segment, int64_t numel) const {
  return numel == this->numel(segment) ? at(segment, 0)
                                       : reinterpret_cast<std::byte*>(slice(segment));
}

void MainGradients::add(const std::vector<kernels::AccumulateRun>& runs) const {
  ShardContext& shared = unit_.shared;
  if (!shared.offloads()) return kernels::accumulate(*shared.reduce_stream, runs);
  Stream& stream = *shared.download_stream;
  Event reduced(shared.device);
  shared.reduce_stream->record(reduced);
  stream.wait(reduced);  // wait 19
  const ContextSpan span = shared.span(stream, "download", unit_.fqn);
  std::vector<kernels::AccumulateRun> adds;
  for (const kernels::AccumulateRun& run : runs) {
    if (run.overwrite && run.source_dtype == DType::kFloat32) {
      stream.copy(run.destination, run.source, run.numel * size_of(run.source_dtype));
    } else {
      adds.push_back(run);  // the device reads and writes the host's memory
    }
  }
  kernels::accumulate(stream, adds);
}

void MainGradients::take(Stream& stream) {
  for (int i = 0; i < unit_.segments(); ++i) {
    if (!unit_.segment(i).trainable) continue;
    slots_[i] = unit_.shared.main_gradients.acquire(numel(i) * size_of(DType::kFloat32));
    if (has(i)) stream.wait(slots_[i]->released);  // wait 9
  }
  state_ = MainGradientState::kReady;
}

void MainGradients::give_back() {
  // A backward that failed may have left a reduction that still writes them. What compute has read
  // of them is waited for by every later reduction (wait 5).
  ShardContext& shared = unit_.shared;
  for (Slot*& slot : slots_) {
    if (slot == nullptr) continue;
    shared.last_of_reduce().record(slot->released);
    shared.main_gradients.release(slot);
    slot = nullptr;
  }
  state_ = MainGradientState::kNone;
  await_across_ = false;
  if (!main_.has_views()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    main_.gradient_of(static_cast<int>(i)) = at::Tensor();
  }
}

bool MainGradients::is_trainable(int parameter) const {
  return unit_.segment(unit_.layout.segment_of(parameter)).trainable;
}

// This rank's part of a parameter's gradient. The view keeps the memory, but says nothing any more
// once the gradient was given back.
at::Tensor MainGradients::view(int parameter) const {
  const int segment = unit_.layout.segment_of(parameter);
  if (!has(segment))
    return torch_compat::wrap(nullptr, 0, DType::kFloat32, unit_.shared.main_torch_device());
  const Interval& local = main_.local(parameter);
  struct Held {
    Mesh mesh;  // first, hence destroyed last
    std::shared_ptr<const Slot> slot;
  };
  return torch_compat::wrap(
      slice(segment) + local.offset, local.numel, DType::kFloat32, unit_.shared.main_torch_device(),
      std::make_shared<const Held>(unit_.shared.mesh, slots_[segment]->shared_from_this()));
}

void MainGradients::attach_views() {
  if (!are_ready() || !main_.has_views()) return;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (!is_trainable(parameter) || main_.gradient_of(parameter).defined()) continue;
    // Frozen since: plain optimizers skip what has no gradient.
    if (!parameters_[i].requires_grad()) continue;
    main_.gradient_of(parameter) = view(parameter);
  }
}

bool MainGradients::are_cleared() const {
  if (!are_ready() || !main_.has_views()) return false;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    if (is_trainable(parameter) && main_.gradient_of(parameter).defined()) return false;
  }
  return true;
}

bool MainGradients::adopt_user_gradients() {
  if (!are_ready() || !main_.has_views()) return true;
  if (are_cleared()) return false;
  const at::NoGradGuard no_grad;
  unit_.shared.last_of_reduce().synchronize();  // the main gradient may still be written there
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int parameter = static_cast<int>(i);
    const Interval& local = main_.local(parameter);
    if (!is_trainable(parameter) || local.numel == 0) continue;
    const float* place = slice(unit_.layout.segment_of(parameter)) + local.offset;
    at::Tensor& gradient = main_.gradient_of(parameter);
    if (gradient.defined() && gradient.const_data_ptr() == place) continue;
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

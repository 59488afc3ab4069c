#include "fsdp/ema.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "fsdp/error.h"
#include "kernels/update.h"
#include "optim/ema_state.h"
#include "optim/scheduler_checks.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

// Elements that an exchange moves at a time.
constexpr int64_t kExchangedNumel = int64_t{1} << 20;

EmaOptions checked(EmaOptions options) {
  require_option(options.decay >= 0 && options.decay <= 1, "Ema", "decay", options.decay,
                 "use a decay between 0 and 1, such as 0.9999");
  return options;
}

}  // namespace

Ema::State::State(Engine& owner, EmaOptions from)
    : engine_held(state_of(owner).shared_from_this()),
      engine(*engine_held),
      options(checked(from)),
      place(engine.training, TrainingKind::kAverage, "Ema") {
  engine.require_between_passes("fsdp::Ema");
  allocate(sizeof(kernels::StepCount), counter_);
  add_buffers();
  const std::lock_guard lock(engine.scheduler->mutex);
  follow_trained();
}

Ema::State::~State() {
  engine.context->streams.finish();  // an update may still use the averages
}

Ema::State::CountedBytes::~CountedBytes() {
  if (bytes > 0) engine.add_memory(MemoryCategory::kOptimizerState, -bytes);
}

void Ema::State::allocate(int64_t bytes, Buffer& to) {
  to = with_place([] { return "an average of weights"; },
                  [&] { return engine.context->main->allocate_own(bytes); });
  engine.add_memory(MemoryCategory::kOptimizerState, bytes);
  counted_.bytes += bytes;
}

void Ema::State::add_buffers() {
  if (!options.buffers) return;
  if (engine.context->main->is_host() && !engine.context->streams.torch_device.is_cpu()) {
    throw InvalidArgument({.what = "Ema: buffers is set with cpu_offload on a GPU",
                           .where = "fsdp::Ema",
                           .cause = "the averages would be on the host, the buffers are not",
                           .hint = "unset buffers, or do not offload"});
  }
  const at::NoGradGuard no_grad;
  for (const auto& item : engine.model.root->named_buffers()) {
    if (!item.value().defined() || !item.value().is_floating_point()) continue;
    buffers.push_back({.fqn = item.key(),
                       .buffer = item.value(),
                       .average = item.value().detach().to(at::kFloat, false, true).contiguous()});
  }
}

void Ema::State::follow_trained() {
  MainPlace& main = *engine.context->main;
  int64_t largest = exchange_.bytes();
  for (const auto& unit : engine.model.units) {
    const ShardLayout& layout = unit->shard->layout();
    for (size_t i = 0; i < layout.segments().size(); ++i) {
      const auto segment = static_cast<int>(i);
      if (!layout.segments()[i].trainable || average_of(unit->index, segment) != nullptr) continue;
      const int64_t bytes = layout.segments()[i].slice_numel * size_of(DType::kFloat32);
      Averaged added{.unit = unit->index, .segment = segment, .values = {}};
      allocate(bytes, added.values);
      main.settle();
      main.stream().copy(added.values.data(), unit->shard->main().data(segment), bytes);
      segments_.push_back(std::move(added));
      largest = std::max(largest, std::min(bytes, kExchangedNumel * size_of(DType::kFloat32)));
    }
  }
  if (largest <= exchange_.bytes()) return;
  main.stream().synchronize();  // an exchange may still use the old room
  engine.add_memory(MemoryCategory::kOptimizerState, -exchange_.bytes());
  counted_.bytes -= exchange_.bytes();
  allocate(largest, exchange_);
}

float* Ema::State::average_of(int unit, int segment) const {
  const auto found = std::ranges::find_if(segments_, [&](const Averaged& each) {
    return each.unit == unit && each.segment == segment;
  });
  return found == segments_.end() ? nullptr : static_cast<float*>(found->values.data());
}

void Ema::State::update(const StepReport& report) {
  engine.require_between_passes("Ema::update");
  engine.training->require_not_averaged("Ema::update");
  const at::NoGradGuard no_grad;
  // If the program has read the report, the host knows whether the step was skipped.
  const std::shared_ptr<const StepScalars> scalars =
      report.skips_nonfinite ? GradientMeasure::scalars_of(report.gradients) : nullptr;
  if (scalars == nullptr && report.skipped()) return;
  const float* const found_inf = scalars != nullptr ? scalars->found_inf() : nullptr;
  const std::lock_guard lock(engine.scheduler->mutex);
  follow_trained();
  auto* const counter = static_cast<kernels::StepCount*>(counter_.data());
  std::vector<kernels::UpdateSegment> updates;
  for (const Averaged& each : segments_) {
    const ShardUnit& shard = *engine.model.units[each.unit]->shard;
    updates.push_back({.param = static_cast<float*>(each.values.data()),
                       .grad = shard.main().data(each.segment),
                       .numel = shard.layout().segments()[each.segment].slice_numel,
                       .step = counter});
  }
  MainPlace& main = *engine.context->main;
  if (!buffers.empty()) main.settle_compute();
  for (const AveragedBuffer& each : buffers) {
    const auto values =
        std::make_shared<const at::Tensor>(each.buffer.detach().to(at::kFloat).contiguous());
    updates.push_back({.param = each.average.mutable_data_ptr<float>(),
                       .grad = values->const_data_ptr<float>(),
                       .numel = values->numel(),
                       .step = counter});
    main.stream().hold(values);
  }
  main.settle();
  engine.context->hold.wait();
  const ContextSpan span = engine.context->streams.span(main.stream(), "average", "");
  kernels::count_steps(main.stream(), {&counter, 1}, {}, found_inf);
  kernels::update(main.stream(), updates,
                  kernels::Average{.decay = options.decay, .warmup = options.warmup},
                  {.found_inf = found_inf});
}

void Ema::State::exchange(float* weights, float* averages, int64_t numel) {
  Stream& stream = engine.context->main->stream();
  void* const room = exchange_.data();
  for (int64_t begin = 0; begin < numel; begin += kExchangedNumel) {
    const int64_t bytes =
        std::min(kExchangedNumel, numel - begin) * static_cast<int64_t>(sizeof(float));
    stream.copy(room, weights + begin, bytes);
    stream.copy(weights + begin, averages + begin, bytes);
    stream.copy(averages + begin, room, bytes);
  }
}

void Ema::State::exchange(bool averaged) {
  const at::NoGradGuard no_grad;
  engine.require_between_passes("fsdp::AveragedWeights");
  engine.pass.require_not_gathered("fsdp::AveragedWeights");
  const std::lock_guard lock(engine.scheduler->mutex);
  MainPlace& main = *engine.context->main;
  main.settle();
  engine.context->hold.wait();
  for (const Averaged& each : segments_) {
    ShardUnit& shard = *engine.model.units[each.unit]->shard;
    exchange(shard.main().data(each.segment), static_cast<float*>(each.values.data()),
             shard.layout().segments()[each.segment].slice_numel);
    shard.mark_changed(/*copies_written=*/false);
  }
  if (!buffers.empty()) main.stream().synchronize();  // LibTorch reads the averages on its stream
  for (const AveragedBuffer& each : buffers) {
    const at::Tensor before = each.buffer.detach().clone();
    each.buffer.detach().copy_(each.average);
    each.average.copy_(before);
  }
  // The backward of an earlier graph is refused, but only after it has issued gathers.
  engine.context->streams.gather_after_compute();
  engine.training->set_averaged(averaged);
}

int64_t Ema::State::updates() const {
  int64_t updates = 0;
  const auto* counter = static_cast<const kernels::StepCount*>(counter_.data());
  engine.context->main->stream().read(&updates, &counter->step, sizeof updates);
  return updates;
}

void Ema::State::set_updates(int64_t updates) {
  Stream& stream = engine.context->main->stream();
  const Buffer from =
      engine.context->streams.device.allocate(sizeof(kernels::StepCount), MemoryKind::kPinned);
  *static_cast<kernels::StepCount*>(from.data()) = {.step = updates};
  stream.copy(counter_.data(), from.data(), sizeof(kernels::StepCount));
  stream.synchronize();  // `from` is destroyed here
}

Ema::Ema(Engine& engine, EmaOptions options) : state_(std::make_unique<State>(engine, options)) {}
Ema::~Ema() = default;
void Ema::update(const StepReport& report) { state_->update(report); }
int64_t Ema::updates() const { return state_->updates(); }

AveragedWeights::AveragedWeights(Ema& ema) : state_(*ema.state_) {
  state_.engine.training->require_not_averaged("fsdp::AveragedWeights");
  state_.exchange(/*averaged=*/true);
}

AveragedWeights::~AveragedWeights() noexcept(false) {
  try {
    state_.exchange(/*averaged=*/false);
  } catch (const std::exception&) {
    state_.engine.training->set_averaged(false);
    if (std::uncaught_exceptions() == 0) throw;
  }
}

}  // namespace fsdp

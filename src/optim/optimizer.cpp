#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "kernels/count_steps.h"
#include "optim/optimizer_state.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

std::vector<char> trained_now(const EngineParts& engine) {
  std::vector<char> trained;
  for (const auto& unit : engine.model.units) {
    for (const at::Tensor& parameter : unit->shard->tensors()) {
      trained.push_back(parameter.requires_grad() ? 1 : 0);
    }
  }
  return trained;
}

}  // namespace

bool is_bias_or_norm(const ShardedParameter& parameter) { return parameter.shape.size() <= 1; }

Optimizer::State::State(Engine& owner, std::string called, Settings settings)
    : engine_held(owner.state().shared_from_this()),
      engine(*engine_held),
      name(std::move(called)),
      lr(settings.lr),
      weight_decay(settings.weight_decay),
      place_(engine.training, TrainingKind::kOptimizer, name),
      groups_(std::move(settings.groups)),
      skip_nonfinite_(settings.skip_nonfinite),
      moments_(settings.moments),
      applied_(add_counters(1)) {
  make_runs();
}

const SegmentLayout& Optimizer::State::layout_of(const OptimizedSegment& optimized) const {
  return engine.model.units[optimized.unit]->shard->layout().segments()[optimized.segment];
}

// Zeros.
kernels::StepCount* Optimizer::State::add_counters(size_t count) {
  const auto bytes = static_cast<int64_t>(count * sizeof(kernels::StepCount));
  counters_.push_back(with_place([] { return "the optimizer's counters"; },
                                 [&] { return engine.context->main->allocate_own(bytes); }));
  return static_cast<kernels::StepCount*>(counters_.back().data());
}

// Segments that are trainable now: at construction, and when parameters were unfrozen, whose
// moments begin at zero then.
void Optimizer::State::add_segments() {
  int64_t added = 0;
  const size_t before = segments_.size();
  for (const auto& unit : engine.model.units) {
    for (const MainSegment& segment : unit->shard->main_segments()) {
      const bool known =
          std::any_of(segments_.begin(), segments_.end(), [&](const OptimizedSegment& each) {
            return each.unit == unit->index && each.segment == segment.segment;
          });
      if (known) continue;
      OptimizedSegment optimized{.unit = unit->index, .segment = segment.segment};
      for (int moment = 0; moment < moments_; ++moment) {
        const int64_t bytes = segment.numel * size_of(DType::kFloat32);
        optimized.moments.push_back(
            with_place([&] { return unit->describe("optimizer state"); },
                       [&] { return engine.context->main->allocate_own(bytes); }));
        added += bytes;
      }
      segments_.push_back(std::move(optimized));
    }
  }
  kernels::StepCount* counters = add_counters(segments_.size() - before);
  for (size_t i = before; i < segments_.size(); ++i, ++counters) {
    segments_[i].counters = {counters};
    segments_[i].step_of.assign(layout_of(segments_[i]).parameters.size(), counters);
  }
  state_bytes_ += added;
  if (added > 0) engine.add_optimizer_state(added);
}

Optimizer::State::~State() {
  engine.context->streams.finish();  // an update may be under way in what goes
  if (state_bytes_ > 0) engine.add_optimizer_state(-state_bytes_);
}

// Parameters frozen since the engine was built have no run: their shards and moments stay as they
// are.
void Optimizer::State::make_runs() {
  trained_ = trained_now(engine);
  known_.resize(trained_.size());
  for (size_t i = 0; i < trained_.size(); ++i) known_[i] |= trained_[i];
  add_segments();
  for (OptimizedSegment& optimized : segments_) {
    const ShardUnit& shard = *engine.model.units[optimized.unit]->shard;
    optimized.runs.clear();
    const std::vector<PlacedParameter>& parameters = layout_of(optimized).parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Interval& interval = shard.main().local(parameters[i].parameter);
      const ParameterSpec& spec = shard.layout().parameters()[interval.parameter];
      if (interval.numel == 0 || !shard.tensors()[interval.parameter].requires_grad()) continue;
      const ShardedParameter described{.fqn = spec.fqn,
                                       .shape = spec.shape,
                                       .trainable = true,
                                       .begin = interval.begin,
                                       .local = {}};
      const auto group = std::find_if(
          groups_.begin(), groups_.end(),
          [&](const ParameterGroup& each) { return each.match && each.match(described); });
      OptimizerRun run{.offset = interval.offset,
                       .numel = interval.numel,
                       .lr_scale = group != groups_.end() ? group->lr_scale : 1.0,
                       .weight_decay = group != groups_.end() ? group->weight_decay : weight_decay,
                       .step = optimized.step_of[i]};
      const bool adjoins =
          !optimized.runs.empty() &&
          interval.offset - (optimized.runs.back().offset + optimized.runs.back().numel) <
              ShardLayout::kAlignment;
      OptimizerRun* last = adjoins ? &optimized.runs.back() : nullptr;
      if (last != nullptr && last->lr_scale == run.lr_scale &&
          last->weight_decay == run.weight_decay && last->step == run.step) {
        last->numel = run.offset + run.numel - last->offset;
      } else {
        optimized.runs.push_back(run);
      }
    }
  }
}

void Optimizer::State::check_gradients_complete() const {
  if (clipped_ && clipped_passes_ != engine.pass.count()) {
    throw StateError({.what = "gradients were added after clip_grad_norm measured them",
                      .hint = "call clip_grad_norm after the last backward of a step; zero_grad of "
                              "the optimizer forgets it"});
  }
  for (const auto& unit : engine.model.units) unit->require_complete_gradients();
}

// What the ranks must do alike, and would show nowhere else: compared with the next collective.
void Optimizer::State::note_step() {
  std::string step = fmt::format("optimizer step {}: lr {}", ++issued_, lr);
  if (momentum_is_set) step += fmt::format(", momentum {}", *momentum());
  engine.context->mesh.state().order().note(step);
}

GradientReport Optimizer::State::clip_grad_norm(double max_norm, double norm_type) {
  engine.require_between_passes("clip_grad_norm");
  engine.context->mesh.state().order().note(
      fmt::format("clip_grad_norm({}, {})", max_norm, norm_type));
  clipped_ = engine.measure_gradients(norm_type, max_norm);
  clipped_passes_ = engine.pass.count();
  return clipped_->report;
}

void Optimizer::State::forget_measured() { clipped_.reset(); }

int64_t Optimizer::State::read(const kernels::StepCount& counter) const {
  int64_t steps = 0;
  with_place([] { return "count of optimizer steps"; },
             [&] { engine.context->main->stream().read(&steps, &counter.step, sizeof steps); });
  return steps;
}

int64_t Optimizer::State::applied() const { return read(*applied_); }

void Optimizer::State::follow_trained() {
  const std::lock_guard lock(engine.clock->mutex);
  engine.pass.unfreeze();
  if (trained_now(engine) != trained_) make_runs();
}

std::vector<OptimizedParameter> Optimizer::State::parameters() const {
  std::vector<OptimizedParameter> kept;
  size_t first_of_unit = 0;  // in known_
  for (const auto& unit : engine.model.units) {
    const size_t first = kept.size();
    for (size_t i = 0; i < segments_.size(); ++i) {
      const OptimizedSegment& optimized = segments_[i];
      if (optimized.unit != unit->index) continue;
      std::map<const kernels::StepCount*, int64_t> steps;
      for (const kernels::StepCount* each : optimized.counters) steps[each] = read(*each);
      const std::vector<PlacedParameter>& placed = layout_of(optimized).parameters;
      for (size_t j = 0; j < placed.size(); ++j) {
        if (!known_[first_of_unit + placed[j].parameter]) continue;
        kept.push_back({.unit = unit->index,
                        .parameter = placed[j].parameter,
                        .segment = i,
                        .steps = steps.at(optimized.step_of[j])});
      }
    }
    std::sort(kept.begin() + static_cast<std::ptrdiff_t>(first), kept.end(),
              [](const auto& a, const auto& b) { return a.parameter < b.parameter; });
    first_of_unit += unit->shard->tensors().size();
  }
  return kept;
}

// Parameters of a segment that have seen equally many updates share a counter.
void Optimizer::State::set_counts(int64_t applied,
                                  const std::vector<OptimizedParameter>& parameters) {
  std::vector<int64_t> counts{applied};
  // By segment, from steps to an index into counts.
  std::vector<std::map<int64_t, size_t>> counter_of(segments_.size());
  for (const OptimizedParameter& each : parameters) {
    if (counter_of[each.segment].emplace(each.steps, counts.size()).second) {
      counts.push_back(each.steps);
    }
  }
  for (auto& counter : counter_of) {  // segments of which nothing is trained, but may be one day
    if (!counter.empty()) continue;
    counter.emplace(0, counts.size());
    counts.push_back(0);
  }
  const std::lock_guard lock(engine.clock->mutex);
  Stream& stream = engine.context->main->stream();
  stream.synchronize();  // with what the old ones are read for
  counters_.clear();
  applied_ = add_counters(counts.size());
  const auto bytes = static_cast<int64_t>(counts.size() * sizeof(kernels::StepCount));
  const Buffer values = engine.context->streams.device.allocate(bytes, MemoryKind::kPinned);
  for (size_t i = 0; i < counts.size(); ++i) {
    static_cast<kernels::StepCount*>(values.data())[i] = {.step = counts[i]};
  }
  stream.copy(applied_, values.data(), bytes);
  stream.synchronize();
  for (size_t i = 0; i < segments_.size(); ++i) {
    OptimizedSegment& optimized = segments_[i];
    optimized.counters.clear();
    for (const auto& [steps, counter] : counter_of[i]) {
      optimized.counters.push_back(applied_ + counter);
    }
    optimized.step_of.assign(optimized.step_of.size(), optimized.counters.front());
  }
  for (const OptimizedParameter& each : parameters) {
    OptimizedSegment& optimized = segments_[each.segment];
    const std::vector<PlacedParameter>& placed = layout_of(optimized).parameters;
    for (size_t j = 0; j < placed.size(); ++j) {
      if (placed[j].parameter != each.parameter) continue;
      optimized.step_of[j] = applied_ + counter_of[each.segment].at(each.steps);
    }
  }
  make_runs();
}

StepReport Optimizer::State::step() {
  return with_place([] { return "optimizer step"; }, [&] { return issue_step(); });
}

// Issued, and decided in the device's memory: whether the kernels write anything, too.
StepReport Optimizer::State::issue_step() {
  engine.require_between_passes("an optimizer's step");
  engine.pass.require_not_gathered("an optimizer's step");
  {
    const std::lock_guard lock(engine.clock->mutex);
    engine.model.follow_zero_grads();
  }
  check_gradients_complete();
  StepReport report{.gradients = {}, .skips_nonfinite = skip_nonfinite_};
  note_step();
  std::optional<GradientMeasure::Measured> measured = std::exchange(clipped_, std::nullopt);
  const bool clips = measured.has_value();
  if (!measured && skip_nonfinite_) {
    measured = engine.measure_gradients(2.0, /*max_norm=*/std::numeric_limits<double>::infinity());
  }
  if (measured) report.gradients = measured->report;
  const std::lock_guard lock(engine.clock->mutex);
  if (trained_now(engine) != trained_) make_runs();
  std::vector<OptimizerUpdate> updates;
  std::vector<std::vector<MainSegment>> kept(engine.model.units.size());
  std::vector<kernels::StepCount*> counters{applied_};
  for (const OptimizedSegment& optimized : segments_) {
    std::vector<MainSegment>& segments = kept[optimized.unit];
    if (segments.empty()) segments = engine.model.units[optimized.unit]->shard->main_segments();
    const MainSegment& segment =
        *std::find_if(segments.begin(), segments.end(),
                      [&](const MainSegment& each) { return each.segment == optimized.segment; });
    // A unit that no backward touched since zero_grad: not updated, not counted.
    if (segment.grad == nullptr) continue;
    counters.insert(counters.end(), optimized.counters.begin(), optimized.counters.end());
    for (const OptimizerRun& run : optimized.runs) {
      updates.push_back({optimized, segment, run, lr * run.lr_scale});
    }
  }
  engine.context->main->settle();
  Stream& stream = engine.context->main->stream();
  const ContextSpan span = engine.context->streams.span(stream, "optimizer", "");
  const float* found_inf = skip_nonfinite_ ? measured->scalars->found_inf() : nullptr;
  kernels::count_steps(stream, counters, betas(), found_inf);
  update(stream, updates, clips ? measured->scalars->coefficient() : nullptr, found_inf);
  for (size_t i = 0; i < kept.size(); ++i) {
    const bool touched = std::any_of(kept[i].begin(), kept[i].end(),
                                     [](const MainSegment& each) { return each.grad != nullptr; });
    if (touched) engine.model.units[i]->shard->mark_changed(/*copies_written=*/true);
  }
  engine.steps.end(*engine.context->streams.compute);
  return report;
}

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;

GradientReport Optimizer::clip_grad_norm(double max_norm, double norm_type) {
  return state_->clip_grad_norm(max_norm, norm_type);
}

StepReport Optimizer::step() { return state_->step(); }

void Optimizer::zero_grad() {
  state_->engine.zero_grad();
  state_->forget_measured();
}

double Optimizer::lr() const { return state_->lr; }
void Optimizer::set_lr(double lr) {
  if (!(lr >= 0) || std::isinf(lr)) {
    throw InvalidArgument({.what = fmt::format("set_lr({})", lr),
                           .hint = "a learning rate is finite and at least 0"});
  }
  state_->lr = lr;
}

double Optimizer::momentum() const {
  const double* momentum = state_->momentum();
  return momentum != nullptr ? *momentum : 0;
}

void Optimizer::set_momentum(double momentum) {
  double* const own = state_->momentum();
  if (own == nullptr) {
    throw InvalidArgument({.what = "set_momentum of an optimizer that was made without",
                           .hint = "make it with SgdOptions::momentum above 0; OneCycleLR: or with "
                                   "cycle_momentum = false"});
  }
  if (!(momentum > 0 && momentum < 1)) {
    throw InvalidArgument({.what = fmt::format("set_momentum({})", momentum),
                           .hint = "a momentum (AdamW's beta1) that changes is between 0 and 1"});
  }
  *own = momentum;
  state_->momentum_is_set = true;
}

int64_t Optimizer::steps() const { return state_->applied(); }

}  // namespace fsdp

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "kernels/count_steps.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"
#include "runtime/device_error_place.h"

namespace fsdp {
namespace {

void require_rate(double lr) {
  if (lr >= 0 && !std::isinf(lr)) return;
  throw InvalidArgument({.what = fmt::format("set_lr got {}", lr), .hint = kLearningRateHint});
}

}  // namespace

// The order of the members matters. The checks, and the registration among the engine's optimizers,
// run before segments_ allocates.
Optimizer::State::State(Engine& owner, std::string called, Settings settings)
    : engine_held(state_of(owner).shared_from_this()),
      engine(*engine_held),
      name(std::move(called)),
      lr(settings.lr),
      weight_decay(settings.weight_decay),
      chosen_(choose_parameters(engine.model, settings.parameters, name)),
      described_(describe_optimizer(name, chosen_, names_of(engine.model, chosen_))),
      place_(engine.training, TrainingKind::kOptimizer, described_,
             names_of(engine.model, chosen_)),
      in_backward_(place_in_backward(settings)),
      grouped_(group_parameters(engine.model, chosen_, name, {&lr, weight_decay}, settings.groups)),
      skip_nonfinite_(settings.skip_nonfinite),
      segments_({engine, chosen_, grouped_.group_of, settings.moments, !settings.adapts,
                 settings.quantizes}) {
  if (settings.adapts) trust_.emplace(engine, chosen_);
}

Optimizer::State::~State() {
  engine.context->streams.finish();  // an update may still use the moments
}

// ---- schedulers ----

double Optimizer::State::begin_schedules() {
  if (!initial_lr_) begin_schedules_at(lr);
  return *initial_lr_;
}

void Optimizer::State::begin_schedules_at(double initial) {
  const bool is_first = !initial_lr_.has_value();
  initial_lr_ = initial;
  for (OptimizerParamGroup& group : grouped_.groups) {
    // The initial rate of a group is its rate when the first scheduler was made. A later scheduler
    // changes only the initial rate of the optimizer, not those of groups.
    if (is_first) group.initial_lr_ = group.lr();
  }
}

void Optimizer::State::change_rates(double initial,
                                    const std::function<double(double lr, double initial)>& next) {
  // All rates are computed and checked before any rate is set, so an error leaves all rates
  // unchanged.
  const double changed = next(lr, initial);
  require_rate(changed);
  std::vector<std::optional<double>> of_groups;
  for (const OptimizerParamGroup& group : grouped_.groups) {
    std::optional<double>& own = of_groups.emplace_back();
    if (!group.own_lr_) continue;
    own = next(*group.own_lr_, group.initial_lr_);
    require_rate(*own);
  }
  lr = changed;
  for (size_t i = 0; i < of_groups.size(); ++i) {
    if (of_groups[i]) grouped_.groups[i].own_lr_ = of_groups[i];
  }
}

// ---- checkpoints ----

void Optimizer::State::follow_trained() {
  const std::lock_guard lock(engine.scheduler->mutex);
  engine.pass.unfreeze();
  segments_.follow_trained();
}

std::map<std::string, double> Optimizer::State::group_values() const {
  std::map<std::string, double> values;
  for (const OptimizerParamGroup& group : grouped_.groups) {
    if (group.own_lr_) values[group.name_ + ".lr"] = *group.own_lr_;
    if (group.own_lr_ && initial_lr_) values[group.name_ + ".initial_lr"] = group.initial_lr_;
    if (group.set_decay_) values[group.name_ + ".weight_decay"] = *group.set_decay_;
  }
  return values;
}

void Optimizer::State::set_group_values(const std::map<std::string, double>& values) {
  const auto value_of = [&](const OptimizerParamGroup& group, std::string_view what) {
    const auto at = values.find(fmt::format("{}.{}", group.name_, what));
    return at != values.end() ? std::optional(at->second) : std::nullopt;
  };
  for (OptimizerParamGroup& group : grouped_.groups) {
    group.own_lr_ = value_of(group, "lr");
    group.set_decay_ = value_of(group, "weight_decay");
    group.initial_lr_ = value_of(group, "initial_lr").value_or(group.initial_lr_);
  }
}

// ---- a step ----

void Optimizer::State::check_gradients_complete() const {
  // Throws if a backward has added gradients after clip_grad_norm, because the clip coefficient
  // does not include them.
  if (clipped_ && clipped_additions_ != additions()) {
    throw StateError({.what = "gradients were added after clip_grad_norm measured them",
                      .hint = "call clip_grad_norm after the last backward of a step, or call the "
                              "optimizer's zero_grad to discard the measured norm"});
  }
  for (const auto& unit : engine.model.units) {
    if (chosen_.any_of(unit->index)) unit->require_complete_gradients();
  }
}

// Returns how many reductions have added to the gradients of units that contain parameters of this
// optimizer.
int64_t Optimizer::State::additions() const {
  int64_t sum = 0;
  for (const auto& unit : engine.model.units) {
    if (chosen_.any_of(unit->index)) sum += unit->shard->gradients().main().additions();
  }
  return sum;
}

// Warns of trainable parameters that no optimizer trains. Warns once per engine, at the first step
// of any of its optimizers.
void Optimizer::State::warn_of_untrained() const {
  if (!engine.training->begin_steps() || chosen_.are_all()) return;
  const std::vector<std::string> untrained =
      engine.training->untrained(names_of(engine.model, {}, /*trainable=*/true));
  const Mesh& mesh = engine.context->mesh;
  if (untrained.empty() || mesh.rank() != 0) return;
  mesh.warn(
      {.what =
           fmt::format("no optimizer trains '{}'{}", untrained.front(),
                       untrained.size() == 1 ? std::string()
                                             : fmt::format(" and {} more parameters that require a "
                                                           "gradient",
                                                           untrained.size() - 1)),
       .where = fmt::format("the first step of {}", described_),
       .cause = "the `parameters` options of fsdp's optimizers leave them out",
       .hint =
           "add them to an optimizer's `parameters`, or freeze them (set_requires_grad(false))"});
}

// Annotates the next collective with an action that has no collective of its own, but that all
// ranks must take. The next collective compares the annotation over the ranks.
void Optimizer::State::note(std::string what) const {
  // With several optimizers, ranks must also agree on the optimizer that acts.
  if (!chosen_.are_all()) what += ", " + described_;
  state_of(engine.context->mesh).order().note(what);
}

void Optimizer::State::note_step() {
  std::string step = fmt::format("optimizer step {}: lr {}", ++issued_, lr);
  if (momentum_is_set) step += fmt::format(", momentum {}", *momentum());
  for (const auto& [setting, value] : group_values()) {
    step += fmt::format(", {} {}", setting, value);
  }
  note(std::move(step));
}

GradientReport Optimizer::State::clip_grad_norm(double max_norm, double norm_type) {
  engine.require_between_passes("clip_grad_norm");
  note(fmt::format("clip_grad_norm({}, {})", max_norm, norm_type));
  clipped_ = engine.measure_gradients(norm_type, max_norm, chosen_);
  clipped_additions_ = additions();
  return clipped_->report;
}

void Optimizer::State::zero_grad() {
  engine.zero_grad(chosen_);
  clipped_.reset();
  used_additions_ = additions();
}

StepReport Optimizer::State::step() {
  return with_place([] { return "optimizer step"; }, [&] { return issue_step(); });
}

// Issues the step. The norm, the clip coefficient and the decision to skip stay in the memory of
// the main state, where kernels read them. So the host does not wait.
StepReport Optimizer::State::issue_step() {
  engine.require_between_passes("an optimizer's step");
  engine.pass.require_not_gathered("an optimizer's step");
  engine.training->require_not_averaged("an optimizer's step");
  if (in_backward_) return end_step();
  {
    const std::lock_guard lock(engine.scheduler->mutex);
    // zero_grad() of a module in a unit chosen by policy does not notify the engine, so the engine
    // checks for it here.
    engine.model.follow_zero_grads();
  }
  check_gradients_complete();
  used_additions_ = additions();
  warn_of_untrained();
  StepReport report{.gradients = {}, .skips_nonfinite = skip_nonfinite_};
  note_step();
  // The result of clip_grad_norm is used for one step only, so it is removed here.
  std::optional<GradientMeasure::Measured> measured = std::exchange(clipped_, std::nullopt);
  const bool clips = measured.has_value();
  // Without clip_grad_norm, nothing has checked for non-finite gradients yet, so they are measured
  // here.
  if (!measured && skip_nonfinite_) {
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    measured = engine.measure_gradients(2.0, kNoClipping, chosen_);
  }
  if (measured) report.gradients = measured->report;
  const std::lock_guard lock(engine.scheduler->mutex);
  segments_.follow_trained();
  StepUpdates updates{.counters = {segments_.applied()}};
  for (const auto& unit : engine.model.units) add_updates(unit->index, updates);
  engine.context->main->settle();
  engine.context->hold.wait();
  Stream& stream = engine.context->main->stream();
  {
    const ContextSpan span = engine.context->streams.span(stream, "optimizer", "");
    issue(stream, updates,
          {.grad_scale = clips ? measured->scalars->coefficient() : nullptr,
           .found_inf = skip_nonfinite_ ? measured->scalars->found_inf() : nullptr});
  }
  engine.steps.end(*engine.context->streams.compute);
  return report;
}

kernels::UpdateSegment Optimizer::State::update_of(const OptimizedSegment& optimized,
                                                   const OptimizerRun& run,
                                                   const MainSegment& segment) const {
  const OptimizerParamGroup& group = grouped_.groups[run.group];
  kernels::UpdateSegment update{.param = segment.param + run.offset,
                                .grad = segment.grad + run.offset,
                                .numel = run.numel,
                                .lr = group.lr(),
                                .weight_decay = group.weight_decay(),
                                .step = reads_steps() ? run.step : nullptr};
  for (size_t i = 0; i < optimized.moments.size(); ++i) {
    if (optimized.pieces[run.piece].is_quantized) break;  // in BlockSegment
    update.moments[i] = optimized.values_at(i, run.offset);
  }
  // In the same pass over memory, the kernel also writes the low-precision copy that forward reads.
  if (segment.resident_copy != nullptr) {
    update.low_precision_copy =
        static_cast<std::byte*>(segment.resident_copy) + run.offset * size_of(segment.copy_dtype);
    update.low_precision_dtype = segment.copy_dtype;
  }
  return update;
}

// Adds the update of a unit. If no backward has reached the unit since zero_grad, the unit is
// neither updated nor counted, as in torch.optim for a parameter without a gradient.
void Optimizer::State::add_updates(int unit, StepUpdates& updates) const {
  ShardUnit& shard = *engine.model.units[unit]->shard;
  // main_segments() is called only once per unit, because each call looks for changes that the user
  // has made to `.grad`.
  std::vector<MainSegment> segments;
  for (const size_t index : segments_.of_unit(unit)) {
    const OptimizedSegment& optimized = segments_.all()[index];
    if (segments.empty()) segments = shard.main_segments();
    const MainSegment& segment =
        *std::ranges::find(segments, optimized.segment, &MainSegment::segment);
    if (segment.grad == nullptr || shard.gradients().main().is_cleared(optimized.first)) continue;
    updates.counters.insert(updates.counters.end(), optimized.counters.begin(),
                            optimized.counters.end());
    for (const OptimizerRun& run : optimized.runs) {
      const kernels::UpdateSegment update = update_of(optimized, run, segment);
      if (optimized.pieces[run.piece].is_quantized) {
        updates.blocks.push_back(
            {update, optimized.blocks_at(0, run.offset), optimized.blocks_at(1, run.offset)});
        continue;
      }
      if (trust_) updates.adapted.push_back({unit, run.parameter, updates.segments.size()});
      updates.segments.push_back(update);
    }
    if (updates.units.empty() || updates.units.back() != unit) updates.units.push_back(unit);
  }
}

void Optimizer::State::issue(Stream& stream, StepUpdates& updates,
                             const kernels::UpdateScalars& scalars) {
  // Steps are counted before the update, because the update reads the corrections of its own step.
  kernels::count_steps(stream, updates.counters, betas(), scalars.found_inf);
  if (trust_) {
    trust_->compute(updates.segments, updates.adapted, rule(), trust_rule(), scalars.grad_scale);
  }
  kernels::update(stream, updates.segments, rule(), scalars);
  if (!updates.blocks.empty()) {
    kernels::update_blocks(stream, updates.blocks, std::get<kernels::AdamW>(rule()), scalars);
  }
  for (const int unit : updates.units) {
    // The unit is marked as changed even if the device skips the step, because the host does not
    // know the device's decision.
    engine.model.units[unit]->shard->mark_changed(/*copies_written=*/true);
  }
}

// ---- Optimizer ----

Optimizer::Optimizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Optimizer::~Optimizer() = default;

GradientReport Optimizer::clip_grad_norm(double max_norm, double norm_type) {
  return state_->clip_grad_norm(max_norm, norm_type);
}

StepReport Optimizer::step() { return state_->step(); }
void Optimizer::zero_grad() { state_->zero_grad(); }

double Optimizer::lr() const { return state_->lr; }
void Optimizer::set_lr(double lr) {
  require_rate(lr);
  state_->lr = lr;
}

std::span<OptimizerParamGroup> Optimizer::param_groups() { return state_->param_groups(); }

double Optimizer::momentum() const {
  const double* momentum = state_->momentum();
  return momentum != nullptr ? *momentum : 0;
}

void Optimizer::set_momentum(double momentum) {
  double* const own = state_->momentum();
  if (own == nullptr) {
    throw InvalidArgument(
        {.what = "set_momentum was called on an optimizer without momentum",
         .hint = "construct the optimizer with SgdOptions::momentum above 0; if OneCycleLR calls "
                 "set_momentum, you can also set cycle_momentum = false"});
  }
  if (!(momentum > 0 && momentum < 1)) {
    throw InvalidArgument({.what = fmt::format("set_momentum got {}", momentum),
                           .hint = "use a momentum (AdamW's beta1) between 0 and 1"});
  }
  *own = momentum;
  state_->momentum_is_set = true;
}

int64_t Optimizer::steps() const { return state_->applied(); }

void Optimizer::require_no_amsgrad(bool amsgrad) {
  if (!amsgrad) return;
  throw InvalidArgument(
      {.what = "torch::optim::AdamWOptions::amsgrad is set",
       .where = "fsdp::AdamW",
       .hint = "use torch::optim::AdamW on Engine::parameters(): fsdp::AdamW has no amsgrad"});
}

}  // namespace fsdp

#include "checkpoint/torch_optimizer_object.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/stored_values.h"
#include "checkpoint/unit_parts.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

using ParamState = torch::optim::OptimizerParamState;

// A moment of a parameter, by the name that PyTorch gives it.
struct Moment {
  std::string_view name;
  at::Tensor tensor;
};

// A class of LibTorch's optimizers, and the functions by which this file reads and makes its state.
struct TorchOptimizerClass {
  std::string_view name;
  bool (*is_of)(const torch::optim::Optimizer& optimizer);
  // Returns the moments that `state` contains.
  std::vector<Moment> (*moments)(const ParamState& state);
  int64_t (*updates)(const ParamState& state);
  // Returns the state of a parameter after `updates` updates, with moments of zeros.
  std::unique_ptr<ParamState> (*make)(const at::Tensor& parameter, int64_t updates,
                                      const std::vector<std::string>& moments);
};

template <class State>
std::vector<Moment> adam_moments(const ParamState& of) {
  const auto& state = static_cast<const State&>(of);
  std::vector<Moment> moments{{"exp_avg", state.exp_avg()}, {"exp_avg_sq", state.exp_avg_sq()}};
  if (state.max_exp_avg_sq().defined())
    moments.push_back({"max_exp_avg_sq", state.max_exp_avg_sq()});
  return moments;
}

template <class State>
int64_t adam_updates(const ParamState& of) {
  return static_cast<const State&>(of).step();
}

template <class State>
std::unique_ptr<ParamState> make_adam(const at::Tensor& parameter, int64_t updates,
                                      const std::vector<std::string>& moments) {
  auto state = std::make_unique<State>();
  state->step(updates);
  state->exp_avg(at::zeros_like(parameter));
  state->exp_avg_sq(at::zeros_like(parameter));
  if (std::ranges::find(moments, "max_exp_avg_sq") != moments.end()) {
    state->max_exp_avg_sq(at::zeros_like(parameter));
  }
  return state;
}

std::vector<Moment> sgd_moments(const ParamState& of) {
  const auto& state = static_cast<const torch::optim::SGDParamState&>(of);
  if (!state.momentum_buffer().defined()) return {};
  return {{"momentum_buffer", state.momentum_buffer()}};
}

std::unique_ptr<ParamState> make_sgd(const at::Tensor& parameter, int64_t,
                                     const std::vector<std::string>& moments) {
  auto state = std::make_unique<torch::optim::SGDParamState>();
  if (!moments.empty()) state->momentum_buffer(at::zeros_like(parameter));
  return state;
}

template <class Class>
bool is_of(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Class*>(&optimizer) != nullptr;
}

constexpr std::array kClasses{
    TorchOptimizerClass{
        "torch::optim::Adam", is_of<torch::optim::Adam>, adam_moments<torch::optim::AdamParamState>,
        adam_updates<torch::optim::AdamParamState>, make_adam<torch::optim::AdamParamState>},
    TorchOptimizerClass{"torch::optim::AdamW", is_of<torch::optim::AdamW>,
                        adam_moments<torch::optim::AdamWParamState>,
                        adam_updates<torch::optim::AdamWParamState>,
                        make_adam<torch::optim::AdamWParamState>},
    TorchOptimizerClass{"torch::optim::SGD", is_of<torch::optim::SGD>, sgd_moments,
                        [](const ParamState&) -> int64_t { return 0; }, make_sgd}};

const TorchOptimizerClass& class_of(const torch::optim::Optimizer& optimizer) {
  for (const TorchOptimizerClass& each : kClasses) {
    if (each.is_of(optimizer)) return each;
  }
  throw InvalidArgument({.what = "the state of this optimizer of LibTorch cannot be saved",
                         .where = "TrainingState::add",
                         .hint = "use torch::optim::Adam, AdamW or SGD, or an optimizer of fsdp"});
}

// A parameter that the optimizer trains, and its place in the engine.
struct TorchParameter {
  EngineParts* engine;
  int unit;
  int parameter;
  at::Tensor local;  // the element of Engine::parameters()

  UnitParameter place() const {
    const EngineUnit& of = *engine->model.units[unit];
    return {of, parameter, of.shard->layout().parameters()[parameter],
            of.shard->main().local(parameter)};
  }
};

// Returns the parameters of all added engines, keyed by the tensors that Engine::parameters()
// returns for them.
std::map<const c10::TensorImpl*, TorchParameter> views_of(const TrainingState::Parts& state) {
  std::map<const c10::TensorImpl*, TorchParameter> views;
  for (const auto& object : state.objects) {
    if (object->order != RestoreOrder::kEngine) continue;
    for (const auto& unit : object->engine()->model.units) {
      const std::vector<at::Tensor>& local = unit->shard->local_views();
      for (size_t i = 0; i < local.size(); ++i) {
        views[local[i].unsafeGetTensorImpl()] = {object->engine(), unit->index, static_cast<int>(i),
                                                 local[i]};
      }
    }
  }
  return views;
}

class TorchOptimizerObject final : public StateObject {
 public:
  TorchOptimizerObject(std::string name, torch::optim::Optimizer& optimizer,
                       std::vector<TorchParameter> parameters)
      : StateObject(std::move(name), RestoreOrder::kOptimizer),
        optimizer_(optimizer),
        class_(class_of(optimizer)),
        parameters_(std::move(parameters)) {}

  std::string kind() const override { return std::string(class_.name); }

  StateValues values() const override {
    StateValues values;
    for (size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
      values[fmt::format("group/{}/lr", i)] = optimizer_.param_groups()[i].options().get_lr();
    }
    std::map<std::string, int64_t> updates;
    for (const TorchParameter& each : parameters_) {
      if (const ParamState* state = state_of_parameter(each))
        updates[each.place().spec.fqn] = class_.updates(*state);
    }
    add_counts(updates, values);
    return values;
  }

  void append_parts(std::vector<StatePart>& parts) override {
    for (const TorchParameter& each : parameters_) {
      if (const ParamState* state = state_of_parameter(each)) append(each, *state, parts);
    }
  }

  void check(const CheckpointManifest& manifest, const ManifestObject& stored,
             std::vector<std::string>& notes) const override {
    StateObject::check(manifest, stored, notes);
    for (size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
      const double lr = double_of(stored, fmt::format("group/{}/lr", i));
      if (!std::isfinite(lr)) refuse_object(stored, "has a rate that is not finite", {});
    }
  }

  // Makes the states that the checkpoint has, because LibTorch's optimizers make them only at their
  // first step.
  void append_stored_parts(const CheckpointManifest& manifest,
                           std::vector<StatePart>& parts) override {
    const at::NoGradGuard no_grad;
    loaded_.clear();
    const auto stored = std::ranges::find(manifest.objects, name, &ManifestObject::name);
    const auto moments = moments_in(manifest, name);
    for (const TorchParameter& each : parameters_) {
      const auto found = moments.find(each.place().spec.fqn);
      if (found == moments.end()) continue;
      std::unique_ptr<ParamState> state =
          class_.make(each.local.detach(), count_of(*stored, found->first), found->second);
      append(each, *state, parts);
      loaded_[each.local.unsafeGetTensorImpl()] = std::move(state);
    }
  }

  void restore(const CheckpointManifest& manifest, const ManifestObject& stored) override {
    static_cast<void>(manifest);
    optimizer_.state().clear();
    for (auto& [parameter, state] : loaded_) {
      optimizer_.state()[const_cast<c10::TensorImpl*>(parameter)] = std::move(state);
    }
    loaded_.clear();
    for (size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
      optimizer_.param_groups()[i].options().set_lr(
          double_of(stored, fmt::format("group/{}/lr", i)));
    }
  }

 private:
  const ParamState* state_of_parameter(const TorchParameter& parameter) const {
    const auto found = optimizer_.state().find(parameter.local.unsafeGetTensorImpl());
    return found != optimizer_.state().end() ? found->second.get() : nullptr;
  }

  void append(const TorchParameter& parameter, const ParamState& state,
              std::vector<StatePart>& parts) const {
    const UnitParameter place = parameter.place();
    for (const Moment& moment : class_.moments(state)) {
      parts.push_back(part_of(*parameter.engine, place,
                              fmt::format("{}/{}/{}", name, moment.name, place.spec.fqn),
                              static_cast<float*>(moment.tensor.mutable_data_ptr())));
      parts.back().has_other_writers = true;
    }
  }

  torch::optim::Optimizer& optimizer_;
  const TorchOptimizerClass& class_;
  const std::vector<TorchParameter> parameters_;
  std::map<const c10::TensorImpl*, std::unique_ptr<ParamState>> loaded_;
};

}  // namespace

std::unique_ptr<StateObject> make_torch_optimizer_object(std::string name,
                                                         torch::optim::Optimizer& optimizer,
                                                         const TrainingState::Parts& state) {
  const std::map<const c10::TensorImpl*, TorchParameter> views = views_of(state);
  std::vector<TorchParameter> parameters;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const auto found = views.find(parameter.unsafeGetTensorImpl());
      if (found != views.end()) {
        parameters.push_back(found->second);
        continue;
      }
      throw InvalidArgument(
          {.what = fmt::format("a parameter of optimizer {} is not a parameter of an added engine",
                               quoted_name(name)),
           .where = "TrainingState::add",
           .hint = "make the optimizer on Engine::parameters(), and keep it while it is used"});
    }
  }
  return std::make_unique<TorchOptimizerObject>(std::move(name), optimizer, std::move(parameters));
}

}  // namespace fsdp

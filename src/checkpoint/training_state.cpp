#include "fsdp/training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <utility>

#include "checkpoint/ema_object.h"
#include "checkpoint/engine_object.h"
#include "checkpoint/loaded_buffers.h"
#include "checkpoint/optimizer_object.h"
#include "checkpoint/torch_optimizer_object.h"
#include "checkpoint/training_state_parts.h"
#include "checkpoint/value_objects.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr std::string_view kModel = "model";

// Returns 32 random hexadecimal digits, which are equal on all ranks. Collective.
std::string agreed_id(const Mesh& mesh) {
  std::random_device random;
  const std::string mine =
      fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  return mesh.exchange("id of the run", mine).front();
}

void require_name(const TrainingState::Parts& state, const std::string& name) {
  const bool valid = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  if (!valid) {
    throw InvalidArgument(
        {.what = fmt::format("an object cannot have the name {} in a training state",
                             quoted_name(name)),
         .where = "TrainingState::add",
         .hint = "use letters, digits, '_', '-' and '.'"});
  }
  if (std::ranges::none_of(state.objects, [&](const auto& each) { return each->name == name; }))
    return;
  throw InvalidArgument({.what = fmt::format("the name {} is taken", quoted_name(name)),
                         .where = "TrainingState::add",
                         .hint = "give each object its own name"});
}

void append(TrainingState::Parts& state, std::unique_ptr<StateObject> object) {
  require_name(state, object->name);
  if (object->engine() != nullptr && !state.has(*object->engine())) {
    throw StateError({.what = fmt::format("{} belongs to an engine that is not in the state",
                                          quoted_name(object->name)),
                      .where = "TrainingState::add",
                      .hint = "add that engine first: state.add(\"teacher\", engine)"});
  }
  state.objects.push_back(std::move(object));
}

}  // namespace

TrainingState::Parts::Parts(Engine& first)
    : engine(state_of(first)), lineage{.run = agreed_id(engine.context->mesh)} {
  nonce = lineage.run.substr(0, 16);
  objects.push_back(std::make_unique<EngineObject>(std::string(kModel), engine));
  objects.push_back(std::make_unique<RandomObject>(engine));
}

bool TrainingState::Parts::has(const EngineParts& other) const {
  return std::ranges::any_of(objects, [&](const auto& each) {
    return each->order == RestoreOrder::kEngine && each->engine() == &other;
  });
}

void TrainingState::Parts::require_complete() const {
  std::vector<const TrainingPlace*> places;
  for (const auto& each : objects) each->append_places(places);
  std::vector<std::string> missing;
  for (const auto& each : objects) {
    if (each->order != RestoreOrder::kEngine) continue;
    std::ranges::move(each->engine()->training->without(places), std::back_inserter(missing));
  }
  if (missing.empty()) return;
  throw StateError({.what = fmt::format("the training state lacks {}", fmt::join(missing, ", ")),
                    .where = "saving a checkpoint",
                    .cause = "a resumed run would begin with a new one",
                    .hint = "add it to the state: state.add(\"NAME\", object)"});
}

std::vector<StatePart> TrainingState::Parts::parts_to_save(const SaveStateOptions& options) {
  std::vector<StatePart> parts;
  for (const auto& each : objects) {
    if (options.weights_only && each->order != RestoreOrder::kEngine) continue;
    each->append_parts(parts);
  }
  if (options.exclude) {
    std::erase_if(parts, [&](const StatePart& part) { return options.exclude(part.name); });
  }
  return parts;
}

std::vector<StateObject*> TrainingState::Parts::in_restore_order() const {
  std::vector<StateObject*> ordered;
  for (const auto& each : objects) ordered.push_back(each.get());
  std::ranges::stable_sort(ordered, {}, &StateObject::order);
  return ordered;
}

bool is_of_model(const TrainingState::Parts& state, std::string_view tensor) {
  return std::ranges::any_of(state.objects, [&](const auto& each) {
    return each->order == RestoreOrder::kEngine && tensor.starts_with(each->name) &&
           tensor.substr(each->name.size()).starts_with('/');
  });
}

TrainingState::TrainingState(Engine& engine) : parts_(std::make_unique<Parts>(engine)) {}
TrainingState::~TrainingState() = default;

TrainingState& TrainingState::add(std::string name, Engine& engine) {
  require_name(*parts_, name);
  parts_->objects.push_back(std::make_unique<EngineObject>(std::move(name), state_of(engine)));
  return *this;
}
TrainingState& TrainingState::add(std::string name, Optimizer& optimizer) {
  append(*parts_, std::make_unique<OptimizerObject>(std::move(name), optimizer));
  return *this;
}
TrainingState& TrainingState::add(std::string name, LRScheduler& scheduler) {
  append(*parts_, std::make_unique<SchedulerObject<LRScheduler>>(std::move(name), scheduler));
  return *this;
}
TrainingState& TrainingState::add(std::string name, ReduceLROnPlateau& scheduler) {
  append(*parts_, std::make_unique<SchedulerObject<ReduceLROnPlateau>>(std::move(name), scheduler));
  return *this;
}
TrainingState& TrainingState::add(std::string name, LossScaler& scaler) {
  append(*parts_, std::make_unique<ScalerObject>(std::move(name), scaler));
  return *this;
}
TrainingState& TrainingState::add(std::string name, SampleCursor& cursor) {
  append(*parts_, std::make_unique<CursorObject>(std::move(name), cursor, parts_->step));
  return *this;
}
TrainingState& TrainingState::add(std::string name, Ema& ema) {
  append(*parts_, std::make_unique<EmaObject>(std::move(name), ema));
  return *this;
}
TrainingState& TrainingState::add(std::string name, torch::optim::Optimizer& optimizer) {
  append(*parts_, make_torch_optimizer_object(std::move(name), optimizer, *parts_));
  return *this;
}
TrainingState& TrainingState::add(std::string name, int64_t& value) {
  append(*parts_, std::make_unique<ValueObject<int64_t>>(std::move(name), value));
  return *this;
}
TrainingState& TrainingState::add(std::string name, double& value) {
  append(*parts_, std::make_unique<ValueObject<double>>(std::move(name), value));
  return *this;
}
TrainingState& TrainingState::add(std::string name, std::string& value) {
  append(*parts_, std::make_unique<ValueObject<std::string>>(std::move(name), value));
  return *this;
}
TrainingState& TrainingState::add(std::string name, at::Tensor& value) {
  if (!value.defined() || value.layout() != at::kStrided || !stored_type(value.scalar_type())) {
    throw InvalidArgument({.what = fmt::format("tensor {} cannot be saved", quoted_name(name)),
                           .where = "TrainingState::add",
                           .cause = "checkpoints have dense tensors of the types of safetensors",
                           .hint = "add a dense tensor of float, integer or bool elements"});
  }
  append(*parts_, std::make_unique<TensorObject>(std::move(name), value, parts_->mesh()));
  return *this;
}

}  // namespace fsdp

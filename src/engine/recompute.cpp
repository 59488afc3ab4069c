#include "fsdp/recompute.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>

#include "engine/autograd_hooks.h"
#include "engine/module_states.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"
#include "fsdp/unit_base.h"
#include "libtorch/torch_compat.h"

namespace fsdp::recompute_detail {
namespace {

namespace ag = torch::autograd;

using Generators = std::vector<at::Generator>;
using States = std::vector<at::Tensor>;  // one per generator

// Returns the generators from which a recomputed function may draw random numbers: LibTorch's
// generators for the CPU and for the devices of the inputs.
Generators generators_of(const Tensors& inputs) {
  Generators generators{at::globalContext().defaultGenerator(at::kCPU)};
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || input.is_cpu() || input.is_meta()) continue;  // meta draws nothing
    const at::Generator& own = at::globalContext().defaultGenerator(input.device());
    if (std::ranges::find(generators, own) == generators.end()) generators.push_back(own);
  }
  return generators;
}

States states_of(const Generators& generators) {
  States states;
  for (at::Generator generator : generators) {
    const std::lock_guard lock(generator.mutex());
    states.push_back(generator.get_state());
  }
  return states;
}

void set_states(const Generators& generators, const States& states) {
  for (size_t i = 0; i < generators.size(); ++i) {
    at::Generator generator = generators[i];
    const std::lock_guard lock(generator.mutex());
    generator.set_state(states[i]);
  }
}

// A scope that restores the state of generators at its end, also after an exception.
class GeneratorsKept {
 public:
  explicit GeneratorsKept(const Generators& generators)
      : generators_(generators), states_(states_of(generators)) {}
  ~GeneratorsKept() { set_states(generators_, states_); }
  GeneratorsKept(const GeneratorsKept&) = delete;
  GeneratorsKept& operator=(const GeneratorsKept&) = delete;

 private:
  const Generators& generators_;
  const States states_;
};

// The positions of the defined tensors in a list. Autograd's nodes accept and return only defined
// tensors.
class Defined {
 public:
  Defined() = default;
  explicit Defined(const Tensors& all) {
    for (const at::Tensor& each : all) are_.push_back(each.defined());
  }
  // Returns the full list, with the given defined tensors at their positions.
  Tensors spread(const Tensors& defined) const {
    Tensors all(are_.size());
    size_t next = 0;
    for (size_t i = 0; i < are_.size(); ++i) {
      if (are_[i]) all[i] = defined[next++];
    }
    return all;
  }
  bool operator==(const Defined&) const = default;

 private:
  std::vector<bool> are_;
};

Tensors defined_of(Tensors all) {
  std::erase_if(all, [](const at::Tensor& each) { return !each.defined(); });
  return all;
}

// A recomputed function and everything that its second run needs. The function's autograd node owns
// it.
struct SavedSegment : torch::CustomClassHolder {
  SavedSegment(Segment code, const UnitBase* whose) : segment(std::move(code)), unit(whose) {}
  Segment segment;
  const UnitBase* const unit;  // the unit whose forward this is, or null
  Defined inputs, outputs;
  Generators generators;
  States before, after;  // the generators' states before and after the first run
  ModuleStates modules;
  touched_units::CallsAround around;
};

std::string name_of(const UnitBase* unit) {
  return unit == nullptr ? "fsdp::recompute" : unit->unit_place();
}

// Runs the segment. Throws InvalidArgument if the segment changes an input in place, because the
// second run in backward could then not use the same input values.
Tensors run_on_kept(const Segment& segment, const UnitBase* unit, const Tensors& inputs) {
  // Inference tensors are skipped, because they have no version counter.
  const auto version = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.is_inference() ? torch_compat::version(tensor) : 0;
  };
  std::vector<int64_t> versions;
  for (const at::Tensor& input : inputs) versions.push_back(version(input));
  Tensors outputs = segment(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (version(inputs[i]) == versions[i]) continue;
    throw InvalidArgument(
        {.what = fmt::format("a recomputed forward changes its input in place: tensor {}, of "
                             "shape [{}]",
                             i, fmt::join(inputs[i].sizes(), ", ")),
         .where = name_of(unit),
         .cause = "backward runs the forward again, but the input values are lost",
         .hint = "do not begin the forward with an in-place operator (ReLU(inplace)), change a "
                 "clone() of the input, or do not recompute this forward"});
  }
  return outputs;
}

std::string shapes_of(const Tensors& tensors) {
  std::vector<std::string> shapes;
  for (const at::Tensor& each : tensors) {
    shapes.push_back(each.defined() ? fmt::format("[{}]", fmt::join(each.sizes(), ", ")) : "[?]");
  }
  return fmt::format("{}", fmt::join(shapes, " "));
}

// Throws because the second run differed from the first run.
[[noreturn]] void refuse_other(const SavedSegment& saved, std::string what, std::string cause,
                               std::string hint) {
  throw StateError({.what = "the recomputed function " + std::move(what),
                    .where = name_of(saved.unit),
                    .cause = std::move(cause),
                    .hint = std::move(hint)});
}

// Runs the segment again in backward, with the same random numbers as in forward, and makes a
// graph.
Tensors run_again(const SavedSegment& saved, const Tensors& inputs) {
  const GeneratorsKept kept(saved.generators);
  set_states(saved.generators, saved.before);
  const at::AutoGradMode grad_mode(true);
  Tensors outputs = [&] {
    // The scope contains only the segment, because operators of the inner backward do not belong to
    // a forward.
    const touched_units::ForwardAgain again;
    return saved.segment(saved.inputs.spread(inputs));
  }();
  // If the generators end in the same state, both runs have drawn the same numbers.
  const auto are_equal = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); };
  if (!std::ranges::equal(states_of(saved.generators), saved.after, are_equal)) {
    refuse_other(
        saved, "drew different random numbers than in forward",
        "the function is not deterministic, or ranks that are threads share LibTorch's generator",
        "make the function deterministic; if it draws random numbers, start the ranks as "
        "processes");
  }
  return outputs;
}

// Returns the defined outputs of the second run, one for each gradient. Throws if they differ from
// the outputs of the first run in number, position or shape.
Tensors outputs_for(const SavedSegment& saved, Tensors outputs, const Tensors& gradients) {
  const bool is_as_before = Defined(outputs) == saved.outputs;
  outputs = defined_of(std::move(outputs));
  const auto fits = [](const at::Tensor& output, const at::Tensor& gradient) {
    return !gradient.defined() || output.sizes() == gradient.sizes();
  };
  if (is_as_before && std::ranges::equal(outputs, gradients, fits)) return outputs;
  refuse_other(
      saved,
      fmt::format("returned {} tensors of shapes {}, expected {} of shapes {}", outputs.size(),
                  shapes_of(outputs), gradients.size(), shapes_of(gradients)),
      "the two runs differ in the number of tensors, in their shapes, or in which tensors are "
      "undefined",
      "make the function return the same tensors for the same inputs: backward runs it again");
}

// The autograd node of a recomputed function. Its forward runs the function without a graph. Its
// backward runs the function again with a graph, and then runs an inner backward of this graph.
struct Recompute : ag::Function<Recompute> {
  // `anchor` is a tensor that requires a gradient. Without this tensor, a function whose inputs
  // require no gradient would get no autograd node. The function needs a node for the gradients of
  // its parameters.
  static Tensors forward(ag::AutogradContext* context, at::TensorList given,
                         const at::Tensor& /*anchor*/, c10::intrusive_ptr<SavedSegment> saved) {
    const Tensors inputs = given.vec();
    saved->generators = generators_of(inputs);
    saved->before = states_of(saved->generators);
    // begin() and end() record the open-ended calls ([Note: open-ended calls] in
    // backward_scheduler.h) that began before the function and still run after it.
    saved->around.begin();
    Tensors outputs = first_run(*saved, saved->inputs.spread(inputs));
    saved->around.end();
    saved->after = states_of(saved->generators);
    saved->modules.settle();
    saved->outputs = Defined(outputs);
    outputs = defined_of(std::move(outputs));
    for (at::Tensor& output : outputs) make_own(output, inputs);
    // If an input is changed after this point, LibTorch's saved variables throw in backward.
    context->save_for_backward(inputs);
    context->saved_data["segment"] = c10::IValue::make_capsule(std::move(saved));
    return outputs;
  }

  static Tensors backward(ag::AutogradContext* context, Tensors gradients) {
    refuse_odd_backward();
    const auto saved = c10::static_intrusive_pointer_cast<SavedSegment>(
        context->saved_data["segment"].toCapsule());
    saved->around.fire();
    Tensors inputs;
    for (const at::Tensor& input : context->get_saved_variables()) {
      // The detached input is a leaf of the inner graph. The inner backward ends at it and writes
      // the gradient to `.grad`.
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    // The modules keep their recorded states until the inner backward below has ended.
    const ModuleStates::Restored restored(saved->modules);
    const Tensors outputs = outputs_for(*saved, run_again(*saved, inputs), gradients);
    Tensors roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    // The inner backward is a graph task inside this task. Hooks capture the gradients of
    // parameters in it, as in any backward.
    if (!roots.empty()) ag::backward(roots, root_gradients);
    Tensors result;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    }
    result.resize(inputs.size() + 2);  // no gradient for the anchor and the segment
    return result;
  }

 private:
  // [Note: grad mode in a first run] Grad mode is on in the first run, because it is on for the
  // caller and in the second run. A function that branches on grad mode then takes the same branch
  // in both runs. A dispatcher guard prevents operators from making nodes. Version counters are
  // still incremented below this guard.
  static Tensors first_run(SavedSegment& saved, const Tensors& inputs) {
    const at::AutoGradMode grad_mode(true);
    const at::AutoDispatchBelowAutograd no_graph;
    if (saved.unit == nullptr) saved.modules.remember_running();
    const ModuleStates::Recording recording(&saved.modules);
    return run_on_kept(saved.segment, saved.unit, inputs);
  }
  // Replaces the output by a new tensor that only this node returns. This is necessary because a
  // function may return a parameter, a buffer, one tensor twice, or a tensor with the graph of a
  // custom Function. If the output shares memory with an input, the new tensor is a view, so
  // autograd refuses in-place changes of it.
  static void make_own(at::Tensor& output, const Tensors& inputs) {
    const bool is_of_input = std::ranges::any_of(inputs, [&](const at::Tensor& input) {
      // is_alias_of is not used, because it accesses the memory. The tensors of a plan have no
      // memory.
      return input.has_storage() && output.has_storage() &&
             output.storage().unsafeGetStorageImpl() == input.storage().unsafeGetStorageImpl();
    });
    output = is_of_input ? output.view_as(output) : output.detach();
  }

  static void refuse_odd_backward() {
    const bool is_grad = autograd_hooks::inputs_given();
    if (!is_grad && !at::GradMode::is_enabled()) return;
    throw StateError(
        {.what = is_grad
                     ? "autograd::grad is not supported through a recomputed function"
                     : "backward with create_graph is not supported through a recomputed function",
         .where = "fsdp::recompute",
         .cause = "its backward builds and runs another graph",
         .hint = "call backward() without create_graph, or do not recompute this function"});
  }
};

}  // namespace

Tensors run(Segment segment, const Tensors& inputs, const UnitBase* unit) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  // Grad mode is on, but no graph is made: this is inside the first run of another recomputed
  // function. Its second run will run this function again, too.
  if (!autograd_hooks::makes_graph()) return run_on_kept(segment, unit, inputs);
  auto saved = c10::make_intrusive<SavedSegment>(std::move(segment), unit);
  saved->inputs = Defined(inputs);
  const Tensors outputs = Recompute::apply(at::TensorList(defined_of(inputs)),
                                           at::empty({0}).set_requires_grad(true), saved);
  // The hooks need the grad_fn of the outputs, which exists only after apply() has returned.
  touched_units::hook_recomputed(outputs, saved->modules);
  return saved->outputs.spread(outputs);
}

}  // namespace fsdp::recompute_detail

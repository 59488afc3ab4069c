#include "fsdp/recompute.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>

#include "engine/autograd_hooks.h"
#include "engine/touched_units.h"
#include "fsdp/error.h"

namespace fsdp::recompute_detail {
namespace {

namespace ag = torch::autograd;

using Generators = std::vector<at::Generator>;
using States = std::vector<at::Tensor>;  // how far each of some generators is

// Those that a segment may draw from.
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

// Generators go on from where they are now, however the scope is left.
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

struct SavedSegment : torch::CustomClassHolder {
  explicit SavedSegment(Segment of) : segment(std::move(of)) {}
  Segment segment;
  Generators generators;
  States before, after;  // its run in forward
};

// In backward: as in forward, with a graph.
Tensors run_again(const SavedSegment& saved, const Tensors& inputs) {
  const GeneratorsKept kept(saved.generators);
  set_states(saved.generators, saved.before);
  const at::AutoGradMode grad_mode(true);
  Tensors outputs = [&] {
    const touched_units::ForwardAgain again;
    return saved.segment(inputs);
  }();
  const auto are_equal = [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); };
  if (std::ranges::equal(states_of(saved.generators), saved.after, are_equal)) return outputs;
  throw StateError({.what = "a recomputed function drew other random numbers than in forward",
                    .where = "fsdp::recompute",
                    .cause = "it takes another way each time, or ranks that are threads draw from "
                             "LibTorch's one generator",
                    .hint = "let it do the same on the same inputs; with random numbers, start "
                            "ranks as processes"});
}

struct Recompute : ag::Function<Recompute> {
  // `anchor` requires a gradient, so that there is a node even if no input does.
  static Tensors forward(ag::AutogradContext* context, at::TensorList inputs,
                         const at::Tensor& /*anchor*/, c10::intrusive_ptr<SavedSegment> saved) {
    context->save_for_backward(inputs.vec());
    saved->generators = generators_of(inputs.vec());
    saved->before = states_of(saved->generators);
    Tensors outputs = saved->segment(inputs.vec());
    saved->after = states_of(saved->generators);
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {  // one tensor cannot be two outputs of a node
        if (!outputs[i].defined() || !outputs[i].is_same(outputs[j])) continue;
        outputs[i] = outputs[i].view_as(outputs[i]);
      }
    }
    context->saved_data["segment"] = c10::IValue::make_capsule(std::move(saved));
    return outputs;
  }

  static Tensors backward(ag::AutogradContext* context, Tensors gradients) {
    refuse_odd_backward();
    const auto saved = c10::static_intrusive_pointer_cast<SavedSegment>(
        context->saved_data["segment"].toCapsule());
    Tensors inputs;
    for (const at::Tensor& input : context->get_saved_variables()) {
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(input.requires_grad())
                                       : input);
    }
    const Tensors outputs = run_again(*saved, inputs);
    Tensors roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) ag::backward(roots, root_gradients);
    Tensors result;
    for (const at::Tensor& input : inputs) {
      const bool wanted = input.defined() && input.requires_grad();
      result.push_back(wanted ? input.grad() : at::Tensor());
    }
    result.resize(inputs.size() + 2);  // nothing for the anchor and the segment
    return result;
  }

 private:
  static void refuse_odd_backward() {
    const bool is_grad = autograd_hooks::inputs_given();
    if (!is_grad && !at::GradMode::is_enabled()) return;
    throw StateError({.what = is_grad ? "autograd::grad through a recomputed function"
                                      : "backward with create_graph through a recomputed function",
                      .where = "fsdp::recompute",
                      .cause = "backward runs a graph of its own inside",
                      .hint = "use backward(), or do not recompute here"});
  }
};

}  // namespace

Tensors run(Segment segment, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  return Recompute::apply(at::TensorList(inputs), at::empty({0}).set_requires_grad(true),
                          c10::make_intrusive<SavedSegment>(std::move(segment)));
}

}  // namespace fsdp::recompute_detail

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
#include "fsdp/error.h"

namespace fsdp::recompute_detail {
namespace {

namespace ag = torch::autograd;

// The generators that a segment may draw from, and how far they are.
class RandomStates {
 public:
  RandomStates() = default;
  explicit RandomStates(const Tensors& inputs) {
    generators_.push_back(at::globalContext().defaultGenerator(at::kCPU));
    for (const at::Tensor& input : inputs) {
      if (!input.defined() || input.device().is_cpu()) continue;
      const at::Generator& own = at::globalContext().defaultGenerator(input.device());
      if (std::ranges::find(generators_, own) == generators_.end()) generators_.push_back(own);
    }
    states_ = now();
  }

  // Of the same generators.
  std::vector<at::Tensor> now() const {
    std::vector<at::Tensor> states;
    for (at::Generator generator : generators_) {
      const std::lock_guard lock(generator.mutex());
      states.push_back(generator.get_state());
    }
    return states;
  }
  void set(const std::vector<at::Tensor>& states) const {
    for (size_t i = 0; i < generators_.size(); ++i) {
      at::Generator generator = generators_[i];
      const std::lock_guard lock(generator.mutex());
      generator.set_state(states[i]);
    }
  }
  const std::vector<at::Tensor>& states() const { return states_; }

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;  // when this was made
};

bool are_equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  return std::ranges::equal(
      one, other, [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

struct SavedSegment : torch::CustomClassHolder {
  explicit SavedSegment(Segment of) : segment(std::move(of)) {}
  Segment segment;
  RandomStates before;
  std::vector<at::Tensor> after;  // the generators' states
};

// In backward: as in forward, with a graph.
Tensors run_again(SavedSegment& saved, const Tensors& inputs) {
  const std::vector<at::Tensor> here = saved.before.now();
  saved.before.set(saved.before.states());
  Tensors outputs;
  {
    const at::AutoGradMode grad_mode(true);
    outputs = saved.segment(inputs);
  }
  const bool drew_alike = are_equal(saved.before.now(), saved.after);
  saved.before.set(here);
  if (drew_alike) return outputs;
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
    saved->before = RandomStates(inputs.vec());
    Tensors outputs = saved->segment(inputs.vec());
    saved->after = saved->before.now();
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

// Activation recomputation as users write it: forward without a graph, again in backward.
#pragma once

#include <functional>

#include "support/torch_doctest.h"

namespace fsdp::testing {

struct Recompute : torch::autograd::Function<Recompute> {
  struct Held : torch::CustomClassHolder {
    std::function<at::Tensor(at::Tensor)> run;
  };
  // `anchor` requires a gradient, so that there is a node even if x does not.
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, at::Tensor,
                            const c10::intrusive_ptr<Held>& held) {
    context->save_for_backward({x});
    context->saved_data["run"] = c10::IValue::make_capsule(held);
    context->saved_data["requires_grad"] = x.requires_grad();
    return held->run(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["run"].toCapsule());
    at::Tensor x = context->get_saved_variables()[0].detach();
    x.set_requires_grad(context->saved_data["requires_grad"].toBool());
    at::Tensor y;
    {
      const at::AutoGradMode with_grad(true);
      y = held->run(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

inline at::Tensor recompute(std::function<at::Tensor(at::Tensor)> run, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return run(x);
  auto held = c10::make_intrusive<Recompute::Held>();
  held->run = std::move(run);
  return Recompute::apply(x, torch::empty({0}, torch::requires_grad()), held);
}

}  // namespace fsdp::testing

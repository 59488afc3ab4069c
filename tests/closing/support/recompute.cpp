#include "closing/support/recompute.h"

namespace fsdp::testing {
namespace {

struct Segment : torch::CustomClassHolder {
  explicit Segment(SegmentForward run) : forward(std::move(run)) {}
  SegmentForward forward;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // `anchor` requires a gradient, so that there is a node even if no input does.
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                         const at::Tensor& /*anchor*/, c10::intrusive_ptr<Segment> segment) {
    context->save_for_backward(inputs.vec());
    Tensors outputs = segment->forward(inputs.vec());
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {  // one tensor cannot be two outputs of a node
        if (outputs[i].is_same(outputs[j])) outputs[i] = outputs[i].view_as(outputs[i]);
      }
    }
    context->saved_data["segment"] = c10::IValue::make_capsule(std::move(segment));
    return outputs;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const auto segment =
        c10::static_intrusive_pointer_cast<Segment>(context->saved_data["segment"].toCapsule());
    Tensors inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().set_requires_grad(saved.requires_grad()));
    }
    Tensors outputs;
    {
      const at::AutoGradMode grad_mode(true);
      outputs = segment->forward(inputs);
    }
    Tensors roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients);
    Tensors result;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    }
    result.resize(inputs.size() + 2);  // nothing for the anchor and the segment
    return result;
  }
};

}  // namespace

Tensors recompute(SegmentForward segment, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return segment(inputs);
  return Recompute::apply(at::TensorList(inputs), torch::empty({0}, torch::requires_grad()),
                          c10::make_intrusive<Segment>(std::move(segment)));
}

}  // namespace fsdp::testing

// Trainings that make each wait of docs/streams.md necessary: a loss whose backward fails, and a
// training with Options::optimizer_in_backward.
#pragma once

#include <fsdp/optim.h>

#include "engine/support/main_copies.h"
#include "engine/support/twin.h"

namespace fsdp::testing {

// Calls the first unit several times. Even steps begin with it and odd steps do not. So the
// backward of an odd step gathers it ahead once more after its last use.
inline at::Tensor with_changing_calls(GraphImpl& graph, const at::Tensor& x) {
  const auto call = [&](int unit, const at::Tensor& in) {
    return torch::tanh(graph.units[unit](in));
  };
  at::Tensor h = graph.step % 2 == 0 ? call(0, x) : x;
  h = call(0, call(1, h));
  for (size_t i = 2; i < graph.units.size(); ++i) h = call(static_cast<int>(i), h);
  return graph.norm(call(0, h));
}

// Returns the body of a model that train_in_backward or another training uses.
inline GraphImpl::Body body_for(const Options& options) {
  return options.optimizer_in_backward ? with_changing_calls : in_a_row;
}

// Returns a loss whose backward throws after the last unit is reduced and another unit has captured
// its gradients.
inline at::Tensor failing_loss(torch::nn::Module& model, int rank) {
  auto& graph = dynamic_cast<GraphImpl&>(model);
  const at::Tensor h = torch::tanh(graph.units[0](values({2, 6}, 1 + rank)));
  const at::Tensor last = graph.units[2](torch::tanh(graph.units[1](h)));
  h.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("thrown"); });
  return last.sum();
}

inline void train_in_backward(torch::nn::Module& model, Engine& engine, int rank) {
  AdamW optimizer(engine, {.lr = 1e-2, .skip_nonfinite = false});
  MainCopies copies(engine);
  for (int step = 0; step < 4; ++step) {
    copies.make();
    graph_loss(model, step, rank).backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step != 1) continue;
    CHECK_THROWS_WITH(failing_loss(model, rank).backward(), "thrown");
    engine.zero_grad();
    for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().mul_(0.5);
    const torch::NoGradGuard no_grad;
    graph_loss(model, step, rank);
  }
}

}  // namespace fsdp::testing

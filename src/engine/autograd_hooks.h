// Installs hooks in LibTorch's autograd and queries the running backward. The hooks report the
// progress of backward to the backward scheduler and the engine. The tests in tests/engine and
// tests/closing verify these functions on LibTorch 2.11 to 2.15.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "libtorch/torch_compat.h"
#include "plan/backward_scheduler.h"

namespace torch::autograd {
struct Node;
}

namespace fsdp::autograd_hooks {

// Returns the id of the graph task that runs in this thread; -1 outside backward.
int current_task();
// Returns true if operators of this thread make autograd nodes. In the first run of a recomputed
// function they make no nodes, although grad mode is on ([Note: grad mode in a first run]).
bool makes_graph();
// Returns the sequence number of the running node. If no node runs (in hooks of tensors), returns
// the highest possible number.
uint64_t current_sequence();
// Returns the sequence number that the next node made in this thread will have.
uint64_t next_sequence();
// Returns the functions with which the backward scheduler queries autograd.
BackwardScheduler::Queries scheduler_queries();
// Returns true if the current graph task is a call of autograd::grad or of backward(inputs).
bool inputs_given();
// Returns true if the running backward keeps the graph (retain_graph).
bool keeps_graph();
// Returns true if the current graph task runs for autograd::grad and returns the gradient of
// `node`.
bool is_captured(const torch::autograd::Node& node);

// Installs a hook on the leaf `parameter`. The hook passes each gradient to `arrived` and then
// drops it, so `.grad` is not set and nothing is accumulated. Returns a node. The hook stays
// installed as long as the caller keeps the node.
// Requires: the parameter already has its final storage and dtype.
using GradientArrived = std::function<void(const at::Tensor& gradient)>;
torch_compat::NodePtr capture_gradients(const at::Tensor& parameter, GradientArrived arrived);

// Returns true if the gradients of `parameter` still arrive at `node`.
bool is_current(const torch::autograd::Node& node, const at::Tensor& parameter);

// Returns the newest node (highest sequence number) that produced one of `inputs`; null if there is
// none. The nodes of leaves are ignored, because they may run at any time.
torch_compat::NodePtr newest_producer(const std::vector<at::Tensor>& inputs);
uint64_t sequence_of(const torch::autograd::Node& node);

// Returns the leaves into which the graph of `outputs` accumulates gradients. Only the section of
// the graph made since node number `begin` is searched.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs, uint64_t begin);

// Makes `call`'s pre_backward run before the node that made `output`. Does this only if the call
// itself made that node: the node's number is at least call->begin. For a view, also hooks the node
// of the view's base, because an in-place change replaces the view's node by the base's node.
// Returns true if it hooked any node.
bool hook_output(const at::Tensor& output, const std::shared_ptr<Call>& call);
// Returns a view of `input`, for a call that returns its own input. The view is an output that can
// be hooked. An in-place change of `input` or of the view would replace the hooked node. LibTorch
// refuses such a change, because the view is marked as made in a custom Function.
at::Tensor pass_through(const at::Tensor& input);
// Installs a hook that calls BackwardScheduler::tick before `producer` runs. The hook runs before
// the node's other hooks, so this call's unit is resharded before the previous unit is gathered.
void hook_producer(torch::autograd::Node& producer, const std::shared_ptr<Call>& call);

}  // namespace fsdp::autograd_hooks

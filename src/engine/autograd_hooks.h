// All contact with LibTorch's autograd: the hooks, which report to the backward scheduler and the
// engine how far backward is, and queries of a running backward. The tests of engine and closing
// verify it on LibTorch 2.11 to 2.15.
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

// Returns the id of the graph task that runs in this thread, -1 outside backward.
int current_task();
// Returns whether operators of this thread make nodes. In the first run of a recomputed function
// they do not, although grad mode is as it is around it ([Note: grad mode in a first run]).
bool makes_graph();
// Returns the sequence number of the node that runs; the highest number if none does (in hooks of
// tensors).
uint64_t current_sequence();
// Returns the number that the next node made in this thread will get.
uint64_t next_sequence();
// Returns the backward scheduler's queries of autograd.
BackwardScheduler::Queries clock_queries();
// Returns whether the current graph task is one of autograd::grad or of backward(inputs).
bool inputs_given();
// Returns whether the running backward keeps the graph (retain_graph).
bool keeps_graph();
// Returns whether the current graph task returns this node's gradient to its caller
// (autograd::grad).
bool is_captured(const torch::autograd::Node& node);

// Installs a hook that passes each gradient of the leaf `parameter` to `arrived` and drops it: no
// `.grad`, no accumulation. Returns the node that the caller keeps as long as the hook is to live.
// Requires: the parameter has its final storage and dtype.
using GradientArrived = std::function<void(const at::Tensor& gradient)>;
torch_compat::NodePtr capture_gradients(const at::Tensor& parameter, GradientArrived arrived);

// Returns whether `parameter`'s gradients still arrive at `node`.
bool is_current(const torch::autograd::Node& node, const at::Tensor& parameter);

// Returns the newest node that produced one of `inputs`, null if there is none. Leaves do not
// count: their nodes run at any time.
torch_compat::NodePtr newest_producer(const std::vector<at::Tensor>& inputs);
uint64_t sequence_of(const torch::autograd::Node& node);

// Returns the leaves into which the graph of `outputs` accumulates gradients, as far as the graph
// was made since the node number `begin`.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs, uint64_t begin);

// Makes the call's pre_backward run before the node that made `output`, if the call made that node
// (its number is at least call->begin). Of a view it also hooks the base's node, which replaces the
// view's after an in-place change. Returns whether it hooked any node.
bool hook_output(const at::Tensor& output, const std::shared_ptr<Call>& call);
// Returns a view of `input` for a call that returns its input: an output that can be hooked. An
// in-place change of either would replace the hooked node, so the view makes LibTorch refuse it.
at::Tensor pass_through(const at::Tensor& input);
// Makes the backward scheduler tick before `producer` runs, in front of the node's other hooks:
// this call's unit is resharded before the previous unit is gathered.
void hook_producer(torch::autograd::Node& producer, const std::shared_ptr<Call>& call);

}  // namespace fsdp::autograd_hooks

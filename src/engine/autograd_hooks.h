// All contact with LibTorch's autograd: the hooks, which pass on to clock and engine what has been
// reached, and the questions asked of a running backward. Verified on 2.11 to 2.15 by the tests of
// engine and closing.
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

// Id of the graph task that runs in this thread, or -1 outside backward.
int current_task();
// Returns whether operators of this thread make nodes. In the first run of a recomputed function
// they do not, though grad mode reads as around it.
bool makes_graph();
// Sequence number of the node that runs; the highest where it is none's turn (hooks of tensors).
uint64_t current_sequence();
// The number that the next node made in this thread will get.
uint64_t next_sequence();
// What the clock asks.
BackwardScheduler::Queries clock_queries();
bool inputs_given();
// Whether the backward that runs leaves the graph usable (retain_graph).
bool keeps_graph();
// Whether the graph task that runs hands this node's gradient to its caller (autograd::grad).
bool is_captured(const torch::autograd::Node& node);

// Calls `arrived` with each gradient of the leaf `parameter` and drops it: no `.grad`, no
// accumulation. Returns what must be kept for the hook to live. Requires: the parameter's final
// storage and dtype.
using GradientArrived = std::function<void(const at::Tensor& gradient)>;
torch_compat::NodePtr capture_gradients(const at::Tensor& parameter, GradientArrived arrived);

// Whether `parameter`'s gradients still arrive at `node`.
bool is_current(const torch::autograd::Node& node, const at::Tensor& parameter);

// The newest non-leaf node that produced one of `inputs`; null if there is none. Leaves are left
// out: their nodes run at any time.
torch_compat::NodePtr newest_producer(const std::vector<at::Tensor>& inputs);
uint64_t sequence_of(const torch::autograd::Node& node);

// The leaves that the graph of `outputs` accumulates gradients into, as far as it was made since
// the node number `begin`.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs, uint64_t begin);

// Makes the call's pre_backward run before the node that made `output`, if the call made it (its
// number is at least call->begin); for a view also before its base's, which replaces it after an
// in-place change. Returns whether anything was hooked.
bool hook_output(const at::Tensor& output, const std::shared_ptr<Call>& call);
// `input`, returned by a call that passed it on, as an output that can be hooked: a view of it. An
// in-place change of either would replace the hooked node, so LibTorch is told to refuse it.
at::Tensor pass_through(const at::Tensor& input);
// A tick of the clock before `producer` runs, in front of its other hooks: this call's unit is
// given back before the previous one's is gathered.
void hook_producer(torch::autograd::Node& producer, const std::shared_ptr<Call>& call);

}  // namespace fsdp::autograd_hooks

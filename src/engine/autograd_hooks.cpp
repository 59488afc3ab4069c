#include "engine/autograd_hooks.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>

#include "fsdp/error.h"

namespace fsdp::autograd_hooks {
namespace {

namespace ag = torch::autograd;

// Returns true if the current graph task will run `node`. Under autograd::grad, autograd runs only
// the nodes on a path to one of the given inputs. exec_info marks these nodes. Without given
// inputs, autograd runs the whole graph.
bool will_run(ag::Node* node) {
  const auto* selected = ag::get_current_graph_task_exec_info();
  if (selected != nullptr && !selected->empty()) {
    const auto found = selected->find(node);
    return found != selected->end() && found->second.should_execute();
  }
  const auto* nodes = ag::get_current_graph_task_nodes_in_graph();
  return nodes != nullptr && nodes->contains(node);
}

// A pre-hook of a parameter's AccumulateGrad node. It passes the gradient to `arrived`. The node
// then accumulates nothing.
class GradientHook final : public ag::FunctionPreHook {
 public:
  explicit GradientHook(GradientArrived arrived) : arrived_(std::move(arrived)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    const at::NoGradGuard no_grad;  // under create_graph hooks run with grad mode on
    arrived_(gradients[0]);
    return {at::Tensor()};  // an undefined gradient, so AccumulateGrad does nothing
  }

 private:
  GradientArrived arrived_;
};

// A pre-hook of a node that made an output of a call. It runs the call's pre_backward when backward
// reaches the node. The graph owns the hook. When the hook is destroyed, the node is destroyed too
// and cannot run again.
class OutputHook final : public ag::FunctionPreHook {
 public:
  OutputHook(std::shared_ptr<Call> call, ag::Node* node) : call_(std::move(call)), node_(node) {
    const auto scheduler = call_->scheduler.lock();  // not null, because the call's forward runs
    const std::lock_guard lock(scheduler->mutex);
    call_->output_nodes.push_back(node_);
  }
  ~OutputHook() override {
    // The freed node is removed from output_nodes, so that a new node at the same address is not
    // mistaken for an output of this call.
    if (const auto scheduler = call_->scheduler.lock()) {
      const std::lock_guard lock(scheduler->mutex);
      std::erase(call_->output_nodes, static_cast<void*>(node_));
    }
  }
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    const auto scheduler = call_->scheduler.lock();
    if (!scheduler)
      return gradients;  // the engine was destroyed, and an access to a parameter throws
    const std::lock_guard lock(scheduler->mutex);
    // In hooks, grad mode is on only if backward was called with create_graph.
    if (at::GradMode::is_enabled()) {
      throw StateError(
          {.what = "backward with create_graph is not supported through a sharded unit",
           .hint = "use the unsharded model for second derivatives"});
    }
    scheduler->pre_backward(*call_, current_task(), current_sequence());
    return gradients;
  }

 private:
  std::shared_ptr<Call> call_;  // shared by the hooks of a call, so it lives as long as the graph
  ag::Node* node_;
};

// A pre-hook of the newest node (highest sequence number) that produced an input of a call.
// Backward reaches this node after all nodes of the call. The hook holds the call weakly, because
// the producer's graph may outlive the call's graph.
class ProducerHook final : public ag::FunctionPreHook {
 public:
  explicit ProducerHook(std::weak_ptr<Call> call) : call_(std::move(call)) {}
  ag::variable_list operator()(const ag::variable_list& gradients) override {
    const auto call = call_.lock();
    const auto scheduler = call ? call->scheduler.lock() : nullptr;
    if (!scheduler) return gradients;
    const std::lock_guard lock(scheduler->mutex);
    // If the call's outputs do not contribute to the loss, backward reaches the producer without
    // having run the call's pre_backward. Then there is nothing to finish, and tick is not called.
    if (call->fired_task == current_task()) scheduler->tick(current_task(), current_sequence());
    return gradients;
  }

 private:
  std::weak_ptr<Call> call_;
};

}  // namespace

int current_task() { return ag::get_current_graph_task_id(); }

bool makes_graph() {
  return at::GradMode::is_enabled() &&
         !c10::impl::tls_is_dispatch_keyset_excluded(c10::autograd_dispatch_keyset);
}

uint64_t current_sequence() {
  const auto node = ag::get_current_node();
  return node ? node->sequence_nr() : std::numeric_limits<uint64_t>::max();
}

uint64_t next_sequence() { return at::sequence_number::peek(); }

bool inputs_given() {
  const auto* selected = ag::get_current_graph_task_exec_info();
  return selected != nullptr && !selected->empty();
}

bool keeps_graph() { return ag::get_current_graph_task_keep_graph(); }

bool is_captured(const ag::Node& node) {
  const auto* selected = ag::get_current_graph_task_exec_info();
  if (selected == nullptr) return false;
  const auto found = selected->find(const_cast<ag::Node*>(&node));
  return found != selected->end() && found->second.captures_ && !found->second.captures_->empty();
}

BackwardScheduler::Queries scheduler_queries() {
  return {.will_run = [](void* node) { return will_run(static_cast<ag::Node*>(node)); },
          .inputs_given = inputs_given,
          .at_end_of_task =
              [](std::function<void()> run) {
                ag::Engine::get_default_engine().queue_callback(std::move(run));
              }};
}

torch_compat::NodePtr capture_gradients(const at::Tensor& parameter, GradientArrived arrived) {
  // A leaf holds its accumulator weakly. The caller keeps the accumulator alive, and the
  // accumulator keeps the hook alive.
  torch_compat::NodePtr accumulator = ag::impl::grad_accumulator(parameter);
  accumulator->add_pre_hook(std::make_unique<GradientHook>(std::move(arrived)));
  return accumulator;
}

bool is_current(const ag::Node& node, const at::Tensor& parameter) {
  // set_data with another dtype or device removes the node of a leaf. grad_accumulator() then makes
  // a new node.
  return !parameter.requires_grad() || ag::impl::grad_accumulator(parameter).get() == &node;
}

torch_compat::NodePtr newest_producer(const std::vector<at::Tensor>& inputs) {
  torch_compat::NodePtr newest;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    const auto& node = input.grad_fn();
    if (node && (!newest || node->sequence_nr() > newest->sequence_nr())) newest = node;
  }
  return newest;
}

uint64_t sequence_of(const ag::Node& node) { return node.sequence_nr(); }

std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& outputs, uint64_t begin) {
  std::vector<at::Tensor> leaves;
  std::vector<ag::Node*> to_see;
  std::unordered_set<const ag::Node*> seen;
  // Nodes with a number below `begin` made the inputs, so the walk stops at them. It never stops at
  // a leaf, because AccumulateGrad nodes have the highest sequence number.
  const auto see = [&](ag::Node* node) {
    if (node != nullptr && node->sequence_nr() >= begin && seen.insert(node).second) {
      to_see.push_back(node);
    }
  };
  for (const at::Tensor& output : outputs) {
    if (output.defined() && output.requires_grad()) see(output.grad_fn().get());
  }
  while (!to_see.empty()) {
    ag::Node* node = to_see.back();
    to_see.pop_back();
    if (const auto* leaf = dynamic_cast<const ag::AccumulateGrad*>(node)) {
      leaves.push_back(leaf->variable);
    }
    for (const ag::Edge& edge : node->next_edges()) see(edge.function.get());
  }
  return leaves;
}

bool hook_output(const at::Tensor& output, const std::shared_ptr<Call>& call) {
  bool hooked = false;
  const auto hook = [&](const torch_compat::NodePtr& node) {
    // If the node's number is below call->begin, the call returned an input. This node is not
    // hooked.
    if (!node || node->sequence_nr() < call->begin) return;
    node->add_pre_hook(std::make_unique<OutputHook>(call, node.get()));
    hooked = true;
  };
  if (!output.defined() || !output.requires_grad()) return false;
  hook(output.grad_fn());
  if (output.is_view()) hook(output._base().grad_fn());
  return hooked;
}

at::Tensor pass_through(const at::Tensor& input) {
  at::Tensor output = input.view_as(input);
  // Marks the view as torch::autograd::Function marks a returned input. LibTorch's comment there
  // says: "the logic to handle view + inplace would override the custom backward".
  if (auto* view = ag::impl::get_view_autograd_meta(output)) {
    view->set_creation_meta(ag::CreationMeta::IN_CUSTOM_FUNCTION);
  }
  return output;
}

void hook_producer(ag::Node& producer, const std::shared_ptr<Call>& call) {
  // The hook is inserted before the node's other hooks. The node often made an output of the
  // previous unit. Then it also has that unit's OutputHook, which gathers that unit's parameters.
  // This call's unit must be closed before that gather.
  auto& hooks = producer.pre_hooks();
  hooks.insert(hooks.begin(), std::make_unique<ProducerHook>(call));
}

}  // namespace fsdp::autograd_hooks

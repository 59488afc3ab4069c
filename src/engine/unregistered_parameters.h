// Finds unregistered parameters: tensors that require gradients and are used in a forward, but were
// never registered, or only after the engine was made. Each rank would train its own, in silence.
//
// They are collected from the graph of the first forward, and judged at the end of its backward. By
// then only the graph holds a tensor that forward has made for itself (torch::autograd::grad with
// respect to an activation). A tensor with another holder will be used in the next step, too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

struct ShardedModel;

// The search, which one pass completes.
class UnregisteredParameters {
 public:
  // Returns whether a pass was judged: nothing more is collected.
  bool is_done() const { return done_; }
  // Collects the `leaves` of a forward's graph, without its inputs, the models' parameters and
  // ignored ones.
  void collect(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& inputs,
               const std::vector<const ShardedModel*>& models);
  // Throws StateError if there is an unregistered parameter. Called at the end of a backward that
  // has not kept its graph.
  void refuse(const torch::nn::Module& root);

 private:
  // An unregistered parameter.
  struct Stray {
    const c10::TensorImpl* tensor = nullptr;  // to find its name; may be freed
    std::string shape;
  };
  // Returns those that the graph does not hold alone, and ends the search.
  std::vector<Stray> judge();
  // Weak, so that the search is no holder itself.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Suspect {
    WeakTensor tensor;
    std::string shape;
  };
  std::vector<Suspect> suspects_;
  bool done_ = false;
};

}  // namespace fsdp

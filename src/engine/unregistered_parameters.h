// Finds unregistered parameters: tensors that require gradients and are used in a forward, but were
// not registered in the model when the engine was made. Without this check each rank would silently
// train its own copy.
//
// The candidates are collected from the graph of the first forward, and checked at the end of its
// backward. A forward may also make a leaf for its own use, for example to call
// torch::autograd::grad with respect to it. At the end of backward only the graph holds such a
// leaf. A tensor that has another holder will be used in the next step too, so it is an
// unregistered parameter.
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

// The search for unregistered parameters. It examines one forward and the backward of this forward,
// and is then complete.
class UnregisteredParameters {
 public:
  // Returns true if the search is complete. collect() and refuse() need not be called any more.
  bool is_done() const { return done_; }
  // Collects the `leaves` of a forward's graph, except the inputs, the models' parameters and
  // ignored parameters.
  void collect(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& inputs,
               const std::vector<const ShardedModel*>& models);
  // Throws StateError if there is an unregistered parameter. Called at the end of a backward that
  // has not kept its graph.
  void refuse(const torch::nn::Module& root);

 private:
  // An unregistered parameter.
  struct Stray {
    const c10::TensorImpl* tensor = nullptr;  // only compared, to find its name; may be freed
    std::string shape;
  };
  // Ends the search. Returns the candidates that have a holder other than the graph.
  std::vector<Stray> judge();
  // A weak reference, so that the search itself is not a holder.
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Suspect {
    WeakTensor tensor;
    std::string shape;
  };
  std::vector<Suspect> suspects_;
  bool done_ = false;
};

}  // namespace fsdp

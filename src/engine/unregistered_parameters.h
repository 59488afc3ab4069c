// Finds what a model trains and no engine knows of: tensors that require gradients and are used in
// a forward, but were never registered, or only after the engine was made. Each rank would train
// its own, in silence.
//
// They are looked for in the graph of the first forward, and judged at the end of its backward: by
// then only the graph holds a tensor that the forward has made for itself (torch::autograd::grad
// with respect to an activation); whatever somebody else still holds will be there in the next
// step.
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

class UnregisteredParameters {
 public:
  // True once a pass was judged: nothing more is looked for.
  bool is_done() const { return done_; }
  // Takes the `leaves` of a forward's graph, but for its inputs, the models' parameters and those
  // that are ignored.
  void collect(const std::vector<at::Tensor>& leaves, const std::vector<at::Tensor>& inputs,
               const std::vector<const ShardedModel*>& models);
  // At the end of a backward that has not kept its graph. Errors: StateError if there is a stray.
  void refuse(const torch::nn::Module& root);

 private:
  struct Stray {
    const c10::TensorImpl* tensor = nullptr;  // to find its name; may be gone
    std::string shape;
  };
  std::vector<Stray> judge();
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Suspect {
    WeakTensor tensor;
    std::string shape;
  };
  std::vector<Suspect> suspects_;
  bool done_ = false;
};

}  // namespace fsdp

// The small models that tests train.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "gpu/support/training.h"

namespace fsdp::testing {

class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::shared_ptr<torch::nn::Module> module() = 0;
  // Returns the loss. Its data depends only on step and rank.
  virtual at::Tensor loss(int step, int rank, at::Device device) = 0;
};

// Returns a model on the CPU. Its values are the same each time.
std::unique_ptr<Subject> make_subject(SmallModel model);
std::unique_ptr<Subject> make_rounded_subject();

}  // namespace fsdp::testing

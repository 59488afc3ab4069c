// Plain models as their authors would write them, without an engine; LibTorch's own among them.
#pragma once

#include <fsdp/unit_policy.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/torch_doctest.h"

namespace fsdp::testing {

using Tensors = std::vector<at::Tensor>;

struct PlainModel {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  // The inputs of a rank's step, and the loss that is computed from them.
  std::function<Tensors(int step, int rank)> inputs;
  std::function<at::Tensor(torch::nn::Module& model, const Tensors& inputs)> loss;
  UnitPolicy units;
  int expected_units = 0;  // the root among them
};

std::vector<PlainModel> plain_models();
PlainModel plain_model(const std::string& name);

}  // namespace fsdp::testing

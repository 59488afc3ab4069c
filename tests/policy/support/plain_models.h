// Plain models as users write them, without an engine. Some are LibTorch's own modules.
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
  // `inputs` returns the inputs of a rank's step. The loss is computed from them.
  std::function<Tensors(int step, int rank)> inputs;
  std::function<at::Tensor(torch::nn::Module& model, const Tensors& inputs)> loss;
  UnitPolicy units;
  int expected_units = 0;  // the root included
};

std::vector<PlainModel> plain_models();
PlainModel plain_model(const std::string& name);

}  // namespace fsdp::testing

// Models as their authors would write them, knowing of no engine; LibTorch's own among them.
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
  // What a step of a rank is computed from; the loss of it.
  std::function<Tensors(int step, int rank)> inputs;
  std::function<at::Tensor(torch::nn::Module& model, const Tensors& inputs)> loss;
  UnitPolicy units;
  int expected_units = 0;  // the root among them
};

std::vector<PlainModel> plain_models();
PlainModel plain_model(const std::string& name);

}  // namespace fsdp::testing

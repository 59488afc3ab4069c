// Keeps the distinct operators of a planned step.
#pragma once

#include <fsdp/played_operators.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meta/meta_mode.h"

namespace fsdp {

// An operator with arguments that have no memory.
struct PlayedOperator {
  std::string key;
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // tensors are meta tensors; equal tensors are the same tensor
  std::vector<at::Tensor> parameters;  // those of the arguments that are parameters
  bool records_graph = false;
};

// Records each operator of a plan that can run by itself. Operators with storages, generators or
// other objects cannot.
class OperatorLog final : public OperatorWatch {
 public:
  void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void after(const c10::OperatorHandle&, const torch::jit::Stack&) override {}
  // Returns the operators in the order of their first calls.
  PlayedOperators operators() const { return PlayedOperators(operators_); }

 private:
  std::set<std::string> seen_;
  std::vector<std::shared_ptr<const PlayedOperator>> operators_;
};

}  // namespace fsdp

// Computes the operations and bytes of LibTorch's operators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <fsdp/rates.h>

#include <vector>

#include "meta/meta_mode.h"
#include "planner/time/virtual_clock.h"

namespace fsdp {

// The work of one operator. It is measured in two parts, because the operator replaces its
// arguments on the stack by its results.
// - Matrix products, attention and convolutions have operations that follow from their shapes.
// - Every operator reads its arguments and writes its results once. Views cost nothing. A lookup in
//   a table reads only the rows that it returns.
// An operator that LibTorch composes of others is seen as one, so its intermediate results do not
// count. Exception: cross_entropy_loss, which writes and reads logarithms of its whole input.
class OperatorPrice {
 public:
  OperatorPrice() = default;
  // Measures the arguments, which are the last values of the stack.
  OperatorPrice(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  // Measures the results, which are the last values of the stack.
  void add_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  TimedKind kind() const { return kind_; }
  double flops() const { return flops_; }
  // True if the operator works on planned tensors and is not only a view.
  bool has_work() const { return works_; }
  // True if the operator contains products whose operations are unknown.
  bool hides_products() const { return hides_products_; }
  // Returns the work: the longer of the times of operations and of bytes.
  // Errors: InvalidArgument if the rates lack the type of a product or of attention.
  TimedWork work(const Rates& rates) const;

 private:
  void note_flops(std::string_view name, const c10::IValue* arguments, size_t count);
  void note_product(const at::Tensor& first, const at::Tensor& second);
  void note_attention(const c10::IValue* tensors, bool is_causal, double forwards);
  void note_convolution(const at::Tensor& input, const at::Tensor& weight, bool transposed);
  void note_convolution_backward(const c10::IValue* arguments);

  TimedKind kind_ = TimedKind::kOperators;
  double flops_ = 0;
  double side_ = 0;   // the smallest side of a product
  double inner_ = 0;  // a product's common side, until its results are known
  double bytes_ = 0;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
  bool works_ = false;
  bool is_planned_ = false;  // an argument is a meta tensor
  bool writes_ = false;      // an argument is written
  bool is_lookup_ = false;
  bool hides_products_ = false;
  std::vector<const void*> storages_;  // of the arguments
};

}  // namespace fsdp

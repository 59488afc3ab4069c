// Implements attention on meta tensors. LibTorch composes attention from an operator that depends
// on the device. It has no such operator for meta tensors. This file uses the operator that the CPU
// would choose.
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "meta/meta_kernels.h"

namespace fsdp {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Returns true if the CPU would use flash attention. LibTorch itself decides this, from CPU tensors
// without memory.
bool cpu_takes_flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool grouped) {
  const auto alike = [](const at::Tensor& tensor) {
    return meta::on_cpu(tensor).set_requires_grad(tensor.requires_grad());
  };
  OptionalTensor mask_there;
  if (mask && mask->defined()) mask_there = alike(*mask);
  const int64_t choice = at::_fused_sdp_choice(alike(query), alike(key), alike(value), mask_there,
                                               dropout, is_causal, scale, grouped);
  return choice == static_cast<int64_t>(sdp::SDPBackend::flash_attention);
}

// Converts a boolean mask to an additive mask (0 or -inf), as LibTorch's attention does.
OptionalTensor added_mask(const OptionalTensor& mask, at::ScalarType type) {
  if (!mask || !mask->defined()) return std::nullopt;
  if (mask->scalar_type() != at::kBool) return mask;
  const double none = -std::numeric_limits<double>::infinity();
  return at::where(*mask, 0.0, at::scalar_tensor(none, mask->options().dtype(type)));
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const OptionalTensor& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool grouped) {
  const OptionalTensor added = added_mask(mask, query.scalar_type());
  if (cpu_takes_flash(query, key, value, mask, dropout, is_causal, scale, grouped)) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout,
                                                                       is_causal, added, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, added, dropout, is_causal, /*dropout_mask=*/std::nullopt, scale, grouped));
}

// Returns the numbers of query rows and key rows that a thread of the CPU kernel processes at once.
std::pair<int64_t, int64_t> block_of(int64_t queries, int64_t keys) {
  const int64_t rows = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return {std::min(rows, queries), std::min<int64_t>(512, keys)};
}

bool is_narrow(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

// Allocates the same memory as the CPU kernel: the results, fp32 scratch for each thread, and, for
// narrow inputs, a narrow copy of the scores. The scratch is freed on return.
std::tuple<at::Tensor, at::Tensor> flash(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, double /*dropout*/,
                                         bool /*is_causal*/, const OptionalTensor& /*mask*/,
                                         std::optional<double> /*scale*/) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  const auto wide = query.options().dtype(at::toOpMathType(query.scalar_type()));
  const at::Tensor output = at::empty_like(query);
  const at::Tensor sums = at::empty({batch, queries, heads}, wide);
  const auto [rows, columns] = block_of(queries, key.size(2));
  const int64_t threads = at::get_num_threads();
  // Each thread's buffer holds the scores of a block, the maxima and sums of its rows, and its
  // output, as in LibTorch's FlashAttentionKernel.cpp.
  const at::Tensor buffer =
      at::empty({threads, rows * columns + 2 * rows + rows * value.size(3)}, wide);
  meta::scratch(is_narrow(query.scalar_type()) ? threads * rows * columns : 0, query.options());
  return {output, sums.transpose(1, 2)};
}

// Allocates the same memory as the CPU's kernel. Gradients are views of tensors in the layout
// [B,S,N,D].
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& /*output*/, const at::Tensor& /*sums*/,
    double /*dropout*/, bool /*is_causal*/, const OptionalTensor& /*mask*/,
    std::optional<double> /*scale*/) {
  if (!gradient.defined()) return {};
  const auto zeros_like = [](const at::Tensor& tensor) {
    return at::zeros(tensor.transpose(1, 2).sizes(), tensor.options());
  };
  const at::Tensor of_query = zeros_like(query), of_key = zeros_like(key),
                   of_value = zeros_like(value);
  const at::Tensor ordered = gradient.transpose(1, 2).contiguous();
  const auto [rows, columns] = block_of(query.size(2), key.size(2));
  const int64_t threads = at::get_num_threads();
  const auto wide = query.options().dtype(at::toOpMathType(query.scalar_type()));
  const at::Tensor buffer = at::empty({threads, (2 * columns + 1) * rows}, wide);
  meta::scratch(is_narrow(query.scalar_type()) ? 2 * threads * rows * columns : 0, query.options());
  return {of_query.transpose(1, 2), of_key.transpose(1, 2), of_value.transpose(1, 2)};
}

}  // namespace

void add_attention(MetaKernels& kernels) {
  kernels.add("_scaled_dot_product_flash_attention_for_cpu", flash);
  kernels.add("_scaled_dot_product_flash_attention_for_cpu_backward", flash_backward);
  // Attention is composed of differentiable operators, so it is also registered above autograd.
  kernels.add_composed("scaled_dot_product_attention", attention);
}

}  // namespace fsdp

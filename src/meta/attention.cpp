// Implements attention on meta tensors. LibTorch composes attention from an operator that depends
// on the device. It has no such operator for meta tensors. This file uses the operator that the CPU
// would choose.
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "libtorch/torch_memory.h"
#include "memory/memory_meter.h"
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

// Returns true if the CPU kernel copies keys and values into the layout of the processor's matrix
// instructions (AMX). LibTorch does so if the products take at least four times as many operations
// as the copies.
bool packs_operands(const at::Tensor& query, const at::Tensor& key, bool is_causal) {
  constexpr int64_t kLeast = 64;
  const int64_t queries = query.size(2), keys = key.size(2);
  if (queries < kLeast || keys < kLeast) return false;
  if (!is_narrow(query.scalar_type()) || !at::native::cpublas::could_pack(query.scalar_type())) {
    return false;
  }
  const int64_t heads = query.size(0) * query.size(1), threads = at::get_num_threads();
  const int64_t rows = block_of(queries, keys).first;
  const int64_t blocks = heads * ((queries + rows - 1) / rows);
  const int64_t blocks_of_thread = (blocks + threads - 1) / threads;
  const int64_t columns = is_causal ? std::min(queries, keys) : keys;
  return blocks_of_thread * rows * columns >= 4 * heads * keys;
}

// Returns the number of elements of these copies, and of what they add for each thread: a
// transposed block of keys, and padding. Matrix instructions take pairs of rows, so odd sizes are
// rounded up.
int64_t packed_numel(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const auto even = [](int64_t size) { return size + size % 2; };
  const int64_t heads = query.size(0) * query.size(1), threads = at::get_num_threads();
  const int64_t head = query.size(3), keys = key.size(2);
  const auto [rows, columns] = block_of(query.size(2), keys);
  const int64_t last = (keys - 1) % columns + 1;
  const int64_t padded_keys = (keys - 1) / columns * even(columns) + even(last);
  const int64_t packed = heads * (even(head) * keys + padded_keys * value.size(3));
  const int64_t padded_query = head % 2 != 0 ? rows * even(head) : 0;
  const int64_t padded_scores = rows * (even(columns) - columns);
  return packed + threads * (columns * head + padded_query + padded_scores);
}

// Allocates the same memory as the CPU kernel: the results, fp32 scratch for each thread, and, for
// narrow inputs, a narrow copy of the scores and perhaps packed operands. The scratch is freed on
// return.
std::tuple<at::Tensor, at::Tensor> flash(const at::Tensor& query, const at::Tensor& key,
                                         const at::Tensor& value, double /*dropout*/,
                                         bool is_causal, const OptionalTensor& /*mask*/,
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
  int64_t narrow = is_narrow(query.scalar_type()) ? threads * rows * columns : 0;
  if (packs_operands(query, key, is_causal)) narrow += packed_numel(query, key, value);
  meta::scratch(narrow, query.options());
  return {output, sums.transpose(1, 2)};
}

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Allocates the same memory as the CPU's kernel whose matrix products use `product_bytes` of
// scratch. Gradients are views of tensors in the layout [B,S,N,D].
Gradients backward_tensors(const at::Tensor& gradient, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value, int64_t product_bytes) {
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
  const int64_t narrow = is_narrow(query.scalar_type()) ? 2 * threads * rows * columns : 0;
  meta::scratch_bytes(narrow * query.element_size() + product_bytes);
  return {of_query.transpose(1, 2), of_key.transpose(1, 2), of_value.transpose(1, 2)};
}

// Returns the scratch of a thread's matrix products in the backward of narrow inputs. oneDNN
// chooses it for the processor, so the CPU's kernel runs on zeros, with one head.
int64_t measured_product_bytes(const at::Tensor& query, const at::Tensor& value, int64_t queries,
                               int64_t keys) {
  const torch_memory::MeterScope none(nullptr);
  const auto peak_on = [&](at::Device device, const auto& backward) {
    const auto zeros = [&](const at::Tensor& like, int64_t rows) {
      return at::zeros({1, 1, rows, like.size(3)}, like.options().device(device));
    };
    const at::Tensor q = zeros(query, queries), k = zeros(query, keys), v = zeros(value, keys),
                     gradient = zeros(value, queries);
    const at::Tensor sums =
        at::zeros({1, 1, queries}, q.options().dtype(at::toOpMathType(q.scalar_type())));
    const auto meter = std::make_shared<MemoryMeter>();
    const torch_memory::MeterScope counted(meter);
    backward(gradient, q, k, v, sums);
    return meter->reading().peaks.torch;
  };
  const int64_t of_run = peak_on(at::kCPU, [](const auto& gradient, const auto& q, const auto& k,
                                              const auto& v, const auto& sums) {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, gradient, sums,
                                                             /*dropout_p=*/0, false);
  });
  const int64_t of_plan =
      peak_on(at::kMeta, [](const auto& gradient, const auto& q, const auto& k, const auto& v,
                            const auto& /*sums*/) { backward_tensors(gradient, q, k, v, 0); });
  return std::max<int64_t>(0, of_run - of_plan);
}

// Returns the scratch of the matrix products of all threads. Each shape is measured once.
int64_t product_bytes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  if (!is_narrow(query.scalar_type())) return 0;
  // A block of each size is enough (block_of): the largest, and the last one, which may be smaller.
  const auto shortened = [](int64_t size, int64_t whole, int64_t block) {
    return size <= whole ? size : whole + size % block;
  };
  const int64_t queries = shortened(query.size(2), 768, 256);
  const int64_t keys = shortened(key.size(2), 512, 512);
  static std::mutex mutex;
  static auto* const measured = new std::map<std::array<int64_t, 5>, int64_t>;
  const std::lock_guard lock(mutex);
  const std::array<int64_t, 5> shape = {static_cast<int64_t>(query.scalar_type()), queries, keys,
                                        query.size(3), value.size(3)};
  auto entry = measured->find(shape);
  if (entry == measured->end()) {
    entry = measured->emplace(shape, measured_product_bytes(query, value, queries, keys)).first;
  }
  return entry->second * std::min<int64_t>(at::get_num_threads(), query.size(0) * query.size(1));
}

Gradients flash_backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
                         const at::Tensor& value, const at::Tensor& /*output*/,
                         const at::Tensor& /*sums*/, double /*dropout*/, bool /*is_causal*/,
                         const OptionalTensor& /*mask*/, std::optional<double> /*scale*/) {
  if (!gradient.defined()) return {};
  return backward_tensors(gradient, query, key, value, product_bytes(query, key, value));
}

}  // namespace

void add_attention(MetaKernels& kernels) {
  kernels.add("_scaled_dot_product_flash_attention_for_cpu", flash);
  kernels.add("_scaled_dot_product_flash_attention_for_cpu_backward", flash_backward);
  // Attention is composed of differentiable operators, so it is also registered above autograd.
  kernels.add_composed("scaled_dot_product_attention", attention);
}

}  // namespace fsdp

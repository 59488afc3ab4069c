#include "checkpoint/loaded_buffers.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr std::array kBufferTypes{
    std::pair(at::kFloat, StoredDType::kF32),       std::pair(at::kHalf, StoredDType::kF16),
    std::pair(at::kBFloat16, StoredDType::kBF16),   std::pair(at::kDouble, StoredDType::kF64),
    std::pair(at::kLong, StoredDType::kI64),        std::pair(at::kInt, StoredDType::kI32),
    std::pair(at::kShort, StoredDType::kI16),       std::pair(at::kChar, StoredDType::kI8),
    std::pair(at::kByte, StoredDType::kU8),         std::pair(at::kBool, StoredDType::kBool),
    std::pair(at::kComplexFloat, StoredDType::kC64)};

// Returns true if no two elements share memory. The elements of an expanded tensor, for example,
// share memory, so values cannot be loaded into it.
bool owns_its_elements(const at::Tensor& buffer) {
  if (buffer.layout() != at::kStrided || buffer.is_quantized()) return false;
  for (int64_t d = 0; d < buffer.dim(); ++d) {
    if (buffer.stride(d) == 0 && buffer.size(d) > 1) return false;
  }
  return true;
}

at::ScalarType buffer_type(StoredDType dtype) {
  const auto* at =
      std::ranges::find(kBufferTypes, dtype, [](const auto& row) { return row.second; });
  if (at == kBufferTypes.end())
    throw StateError({.what = fmt::format("LibTorch has no type {} for a buffer", name_of(dtype))});
  return at->first;
}

}  // namespace

std::vector<LoadableBuffer> loadable_buffers(torch::nn::Module& root) {
  std::vector<LoadableBuffer> found;
  std::unordered_map<const c10::TensorImpl*, size_t> seen;
  for (const auto& item : root.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || !owns_its_elements(buffer) || !stored_type(buffer.scalar_type())) {
      continue;
    }
    const auto [at, is_new] = seen.emplace(buffer.unsafeGetTensorImpl(), found.size());
    if (is_new) {
      found.push_back({.fqn = item.key(), .buffer = buffer});
    } else {
      found[at->second].aliases.push_back(item.key());
    }
  }
  return found;
}

std::optional<StoredDType> stored_type(at::ScalarType type) {
  const auto* at = std::ranges::find(kBufferTypes, type, [](const auto& row) { return row.first; });
  return at != kBufferTypes.end() ? std::optional(at->second) : std::nullopt;
}

// Copies the bytes to aligned memory first, because the bytes of a file may have any address.
at::Tensor read_whole(const WeightsFile& file, const MappedTensor& tensor) {
  const at::ScalarType type = buffer_type(tensor.dtype);
  const int64_t item_bytes = bits_of(tensor.dtype) / 8;
  if (tensor.bytes.empty()) return at::empty(tensor.shape, type);
  const at::Tensor spanned = at::empty({std::ssize(tensor.bytes) / item_bytes}, type);
  std::memcpy(spanned.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
  // The pages of the file are released, because they are not needed again. The copy keeps the
  // strides of the file.
  file.forget(tensor.bytes);
  return spanned.as_strided(tensor.shape, tensor.strides);
}

}  // namespace fsdp

// Tensors as a table for people.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <span>
#include <string>

namespace fsdp {

// One line a tensor, columns aligned: name, dtype, shape, bytes. Names are made printable.
std::string format_tensors(std::span<const StoredTensor> tensors);

struct TensorTotals {
  int64_t tensors = 0;
  int64_t numel = 0;
  int64_t nbytes = 0;
};
TensorTotals totals_of(std::span<const StoredTensor> tensors);

// "3 tensors, 1,234 elements, 4,936 bytes (4.8 KiB)"
std::string format_totals(const TensorTotals& totals);

// "F32 2, I64 1"
std::string format_dtype_counts(std::span<const StoredTensor> tensors);

// "by type    F32  2 tensors, 8 elements, 32 bytes", a line a type, and so on by what names begin
// with up to the first dot in which they differ; what all begin with has a line of its own.
std::string format_groups(std::span<const StoredTensor> tensors);

}  // namespace fsdp

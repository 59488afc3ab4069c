// Formats tensors as a table for people.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <span>
#include <string>

namespace fsdp {

// Returns one line for each tensor, with aligned columns for name, dtype, shape and bytes. Control
// characters in names are escaped.
std::string format_tensors(std::span<const StoredTensor> tensors);

// The sums over a list of tensors.
struct TensorTotals {
  int64_t tensors = 0;
  int64_t numel = 0;
  int64_t nbytes = 0;
};
TensorTotals totals_of(std::span<const StoredTensor> tensors);

// Returns "3 tensors, 1,234 elements, 4,936 bytes (4.8 KiB)".
std::string format_totals(const TensorTotals& totals);

// Returns the number of tensors of each type: "F32 2, I64 1".
std::string format_dtype_counts(std::span<const StoredTensor> tensors);

// Returns a line for each type, such as "by type F32 2 tensors, 8 elements, 32 bytes", and a line
// for each prefix of names. If all names have a part in common, this part has its own line, and a
// prefix ends at the first dot after the part.
std::string format_groups(std::span<const StoredTensor> tensors);

}  // namespace fsdp

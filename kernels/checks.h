// Checks arguments of kernels, for every device. Each error names the kernel and the wrong value.
#pragma once

#include <string_view>

#include "kernels/strided.h"
#include "runtime/dtype.h"

namespace fsdp::kernels {

// Throws InvalidArgument, which names both dtypes, unless each is float32, bfloat16 or float16.
void require_elements(std::string_view kernel, DType from, DType to);

// Throws InvalidArgument unless the dtype is bfloat16 or float16.
void require_low_precision(std::string_view kernel, DType copy);

// Throws InvalidArgument if the number of dimensions is not in the range 0 to kMaxDims.
void require_dims(std::string_view kernel, const StridedSource& source);

}  // namespace fsdp::kernels

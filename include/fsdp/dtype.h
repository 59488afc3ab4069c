// Element types that the engine moves: enough for parameters, gradients, norms and flags.
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64, kInt64, kInt32, kUInt8 };

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::kFloat64; }

// "float32", "bfloat16", …: the spelling of torch and of command lines.
std::string_view name_of(DType dtype);
// Also accepts "fp32", "bf16", "fp16", "fp64". Errors: InvalidArgument naming the choices.
DType dtype_from_name(std::string_view name);

}  // namespace fsdp

// DType: the element types that the engine supports, for parameters, gradients, norms and flags.
#pragma once

#include <fsdp/scalar_type.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

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

// LibTorch's numbers of these types, in the order of DType. torch_compat.cpp checks that LibTorch's
// headers have the same numbers.
inline constexpr std::array kScalarTypes{std::pair(DType::kFloat32, c10::ScalarType{6}),
                                         std::pair(DType::kBFloat16, c10::ScalarType{15}),
                                         std::pair(DType::kFloat16, c10::ScalarType{5}),
                                         std::pair(DType::kFloat64, c10::ScalarType{7}),
                                         std::pair(DType::kInt64, c10::ScalarType{4}),
                                         std::pair(DType::kInt32, c10::ScalarType{3}),
                                         std::pair(DType::kUInt8, c10::ScalarType{0})};

// Returns the DType, or nothing if the engine does not support `type` (complex, quantised, bool,
// …).
constexpr std::optional<DType> dtype_of(c10::ScalarType type) {
  for (const auto& [dtype, scalar_type] : kScalarTypes) {
    if (scalar_type == type) return dtype;
  }
  return std::nullopt;
}
constexpr c10::ScalarType scalar_type_of(DType dtype) {
  return kScalarTypes[static_cast<size_t>(dtype)].second;
}

// Returns "float32", "bfloat16", …, as torch and command lines spell them.
std::string_view name_of(DType dtype);

}  // namespace fsdp

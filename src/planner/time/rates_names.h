// Names that a rates file uses.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <string_view>

namespace fsdp {

inline constexpr std::string_view kRatesFormat = "fsdp rates 1";

struct RatesType {
  std::string_view name;
  c10::ScalarType dtype;
};
inline constexpr std::array<RatesType, 4> kRatesTypes = {{{"float32", c10::ScalarType::Float},
                                                          {"bfloat16", c10::ScalarType::BFloat16},
                                                          {"float16", c10::ScalarType::Half},
                                                          {"float64", c10::ScalarType::Double}}};

// The engine's kernels that have a rate of their own (Rates::kernels).
inline constexpr std::array<std::string_view, 8> kTimedKernels = {
    "accumulate", "cast_pack", "digest", "fill", "grad_norm", "reduce", "update", "update_blocks"};

}  // namespace fsdp

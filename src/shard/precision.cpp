#include "shard/precision.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "fsdp/error.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

// A field of MixedPrecision.
struct Field {
  std::string_view name;
  bool (*allows)(DType dtype);
  std::string_view hint;
};
constexpr Field kParam{
    .name = "param_dtype",
    .allows = [](DType dtype) { return is_floating(dtype) && dtype != DType::kFloat64; },
    .hint = "use float32, bfloat16 or float16"};
constexpr Field kReduce{
    .name = "reduce_dtype",
    .allows = [](DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kBFloat16; },
    .hint = "use float32 or bfloat16"};
constexpr Field kOutput{.name = "output_dtype",
                        .allows = is_floating,
                        .hint = "use float32, bfloat16, float16 or float64"};

std::optional<DType> read(const Field& field, std::optional<c10::ScalarType> type,
                          const std::string& where) {
  if (!type) return std::nullopt;
  const std::optional<DType> dtype = dtype_of(*type);
  if (dtype && field.allows(*dtype)) return dtype;
  throw InvalidArgument(
      {.what = fmt::format("{} {} is not supported", field.name, torch_compat::type_name(*type)),
       .where = where,
       .hint = std::string(field.hint)});
}

}  // namespace

Precision Precision::of(const MixedPrecision& types, std::string_view where) {
  const std::string place(where);
  return {.param = read(kParam, types.param_dtype, place),
          .reduce = read(kReduce, types.reduce_dtype, place).value_or(DType::kFloat32),
          .output = read(kOutput, types.output_dtype, place),
          .casts_inputs = types.cast_forward_inputs};
}

std::array<std::string, 4> Precision::lines() const {
  return {fmt::format("param_dtype {}", name_or_unset(param)),
          fmt::format("reduce_dtype {}", name_of(reduce)),
          fmt::format("output_dtype {}", name_or_unset(output)),
          fmt::format("cast_forward_inputs {}", casts_inputs)};
}

std::string name_or_unset(const std::optional<DType>& dtype) {
  return dtype ? std::string(name_of(*dtype)) : "unset";
}

}  // namespace fsdp

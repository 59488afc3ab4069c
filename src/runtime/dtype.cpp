#include "fsdp/dtype.h"

#include <fmt/format.h>

#include <array>

#include "fsdp/error.h"

namespace fsdp {
namespace {

struct Spelling {
  DType dtype;
  std::string_view name, alias;
};
constexpr std::array kSpellings{
    Spelling{DType::kFloat32, "float32", "fp32"}, Spelling{DType::kBFloat16, "bfloat16", "bf16"},
    Spelling{DType::kFloat16, "float16", "fp16"}, Spelling{DType::kFloat64, "float64", "fp64"},
    Spelling{DType::kInt64, "int64", "long"},     Spelling{DType::kInt32, "int32", "int"},
    Spelling{DType::kUInt8, "uint8", "byte"},
};

}  // namespace

std::string_view name_of(DType dtype) {
  for (const Spelling& spelling : kSpellings) {
    if (spelling.dtype == dtype) return spelling.name;
  }
  return "unknown";
}

DType dtype_from_name(std::string_view name) {
  for (const Spelling& spelling : kSpellings) {
    if (name == spelling.name || name == spelling.alias) return spelling.dtype;
  }
  throw InvalidArgument({.what = fmt::format("unknown dtype '{}'", name),
                         .hint = "use float32, bfloat16, float16, float64, int64, int32 or uint8"});
}

}  // namespace fsdp

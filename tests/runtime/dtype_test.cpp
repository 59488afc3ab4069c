#include "fsdp/dtype.h"

#include <doctest/doctest.h>

#include <array>

#include "fsdp/error.h"

namespace fsdp {
namespace {

struct Row {
  DType dtype;
  std::string_view name, alias;
  int64_t size;
  bool floating;
};
constexpr std::array kRows{
    Row{DType::kFloat32, "float32", "fp32", 4, true},
    Row{DType::kBFloat16, "bfloat16", "bf16", 2, true},
    Row{DType::kFloat16, "float16", "fp16", 2, true},
    Row{DType::kFloat64, "float64", "fp64", 8, true},
    Row{DType::kInt64, "int64", "long", 8, false},
    Row{DType::kInt32, "int32", "int", 4, false},
    Row{DType::kUInt8, "uint8", "byte", 1, false},
};

TEST_CASE("every dtype has a name, a short name, a size and a kind") {
  for (const Row& row : kRows) {
    CHECK(name_of(row.dtype) == row.name);
    CHECK(dtype_from_name(row.name) == row.dtype);
    CHECK(dtype_from_name(row.alias) == row.dtype);
    CHECK(size_of(row.dtype) == row.size);
    CHECK(is_floating(row.dtype) == row.floating);
  }
}

TEST_CASE("an unknown dtype is refused with the choices") {
  CHECK_THROWS_WITH_AS(dtype_from_name("float8"),
                       "unknown dtype 'float8'; hint: use float32, bfloat16, float16, float64, "
                       "int64, int32 or uint8",
                       InvalidArgument);
  CHECK_THROWS_AS(dtype_from_name(""), InvalidArgument);
}

}  // namespace
}  // namespace fsdp

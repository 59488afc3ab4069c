#include "runtime/dtype.h"

#include <doctest/doctest.h>

#include <array>

namespace fsdp {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t size;
  bool floating;
};
constexpr std::array kRows{
    Row{DType::kFloat32, "float32", 4, true}, Row{DType::kBFloat16, "bfloat16", 2, true},
    Row{DType::kFloat16, "float16", 2, true}, Row{DType::kFloat64, "float64", 8, true},
    Row{DType::kInt64, "int64", 8, false},    Row{DType::kInt32, "int32", 4, false},
    Row{DType::kUInt8, "uint8", 1, false},
};

TEST_CASE("every dtype has a name, a size, a kind and a type of LibTorch's") {
  for (const Row& row : kRows) {
    CHECK(name_of(row.dtype) == row.name);
    CHECK(size_of(row.dtype) == row.size);
    CHECK(is_floating(row.dtype) == row.floating);
    CHECK((dtype_of(scalar_type_of(row.dtype)) == row.dtype));
  }
  CHECK_FALSE(dtype_of(c10::ScalarType{11}).has_value());  // bool
}

}  // namespace
}  // namespace fsdp

#include <fmt/format.h>
#include <fsdp/safetensors.h>

#include <array>

#include "fsdp/error.h"
#include "runtime/dtype.h"

namespace fsdp {
namespace {

// The properties of an element type. `engine` is the engine's type with the same values, if there
// is one.
struct Row {
  StoredDType dtype;
  std::string_view name;
  int64_t bits;
  std::optional<DType> engine;
};
constexpr std::array kRows{
    Row{StoredDType::kBool, "BOOL", 8, {}},
    Row{StoredDType::kF4, "F4", 4, {}},
    Row{StoredDType::kF6E2M3, "F6_E2M3", 6, {}},
    Row{StoredDType::kF6E3M2, "F6_E3M2", 6, {}},
    Row{StoredDType::kU8, "U8", 8, DType::kUInt8},
    Row{StoredDType::kI8, "I8", 8, {}},
    Row{StoredDType::kF8E5M2, "F8_E5M2", 8, {}},
    Row{StoredDType::kF8E4M3, "F8_E4M3", 8, {}},
    Row{StoredDType::kF8E8M0, "F8_E8M0", 8, {}},
    Row{StoredDType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8, {}},
    Row{StoredDType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8, {}},
    Row{StoredDType::kI16, "I16", 16, {}},
    Row{StoredDType::kU16, "U16", 16, {}},
    Row{StoredDType::kF16, "F16", 16, DType::kFloat16},
    Row{StoredDType::kBF16, "BF16", 16, DType::kBFloat16},
    Row{StoredDType::kI32, "I32", 32, DType::kInt32},
    Row{StoredDType::kU32, "U32", 32, {}},
    Row{StoredDType::kF32, "F32", 32, DType::kFloat32},
    Row{StoredDType::kC64, "C64", 64, {}},
    Row{StoredDType::kF64, "F64", 64, DType::kFloat64},
    Row{StoredDType::kI64, "I64", 64, DType::kInt64},
    Row{StoredDType::kU64, "U64", 64, {}},
};

// Checks that the table has the order of the enum, which row_of() uses as its index.
constexpr bool rows_follow_the_enum() {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return kRows.size() == static_cast<size_t>(StoredDType::kU64) + 1;
}
static_assert(rows_follow_the_enum());

const Row& row_of(StoredDType dtype) { return kRows.at(static_cast<size_t>(dtype)); }

}  // namespace

std::string_view name_of(StoredDType dtype) { return row_of(dtype).name; }
int64_t bits_of(StoredDType dtype) { return row_of(dtype).bits; }
std::optional<c10::ScalarType> scalar_type_of(StoredDType dtype) {
  const std::optional<DType> engine = row_of(dtype).engine;
  return engine ? std::optional(scalar_type_of(*engine)) : std::nullopt;
}

std::optional<StoredDType> stored_dtype_from_name(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

StoredDType stored_dtype(c10::ScalarType type) {
  const std::optional<DType> dtype = dtype_of(type);
  for (const Row& row : kRows) {
    if (dtype && row.engine == dtype) return row.dtype;
  }
  throw InvalidArgument(
      {.what = fmt::format("LibTorch's type {} has no StoredDType", static_cast<int>(type)),
       .hint = "pass a StoredDType"});
}

}  // namespace fsdp

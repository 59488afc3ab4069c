// Precision is a unit's MixedPrecision in the engine's own types.
#pragma once

#include <fsdp/options.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/dtype.h"

namespace fsdp {

struct Precision {
  // Converts `types`. `where` names its option in errors.
  // Errors: InvalidArgument with the field's name for an unsupported type.
  static Precision of(const MixedPrecision& types,
                      std::string_view where = "Options::mixed_precision");

  std::optional<DType> param;  // of forward and backward; empty: as constructed
  DType reduce = DType::kFloat32;
  std::optional<DType> output;  // empty: as computed
  bool casts_inputs = true;

  // Returns "param_dtype bfloat16", "reduce_dtype float32", …, which ranks compare.
  std::array<std::string, 4> lines() const;
  // Returns the type to which floating inputs of a forward are cast; empty: no cast.
  std::optional<DType> input() const { return casts_inputs ? param : std::nullopt; }
};

// Returns the type's name, or "unset".
std::string name_or_unset(const std::optional<DType>& dtype);

}  // namespace fsdp

// Precision holds a unit's MixedPrecision in the engine's own types.
#pragma once

#include <fsdp/options.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/dtype.h"

namespace fsdp {

struct Precision {
  // Converts `types`. Error messages use `where` to name the option. Errors: InvalidArgument, with
  // the name of the field, for an unsupported type.
  static Precision of(const MixedPrecision& types,
                      std::string_view where = "Options::mixed_precision");

  std::optional<DType> param;  // type in forward and backward; empty: the type at construction
  DType reduce = DType::kFloat32;
  std::optional<DType> output;  // type of the outputs; empty: the type that forward computes
  bool casts_inputs = true;

  // Returns lines like "param_dtype bfloat16" and "reduce_dtype float32". Ranks compare these
  // lines, because all must use the same types.
  std::array<std::string, 4> lines() const;
  // Returns the type to which floating inputs of a forward are cast. Empty if they are not cast.
  std::optional<DType> input() const { return casts_inputs ? param : std::nullopt; }
};

// Returns the type's name, or "unset".
std::string name_or_unset(const std::optional<DType>& dtype);

}  // namespace fsdp

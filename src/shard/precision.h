// A unit's MixedPrecision in the engine's own types.
#pragma once

#include <fsdp/options.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/dtype.h"

namespace fsdp {

struct Precision {
  // `where`, for errors: the option that `types` is.
  // Errors: InvalidArgument with the field's name for a type that it cannot have.
  static Precision of(const MixedPrecision& types,
                      std::string_view where = "Options::mixed_precision");

  std::optional<DType> param;  // of forward and backward; empty: as constructed
  DType reduce = DType::kFloat32;
  std::optional<DType> output;  // empty: as computed
  bool casts_inputs = true;

  // "param_dtype bfloat16", "reduce_dtype float32", …; equal on all ranks.
  std::array<std::string, 4> lines() const;
  // Floating inputs of a forward are cast to it; empty: they stay as they are.
  std::optional<DType> input() const { return casts_inputs ? param : std::nullopt; }
};

// "unset" if there is none.
std::string name_or_unset(const std::optional<DType>& dtype);

}  // namespace fsdp

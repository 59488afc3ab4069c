// A function that makes a parameter with a given number of elements, for tests of layouts.
#pragma once

#include <string>
#include <utility>

#include "plan/shard_layout.h"

namespace fsdp::testing {

inline ParameterSpec spec(std::string fqn, int64_t numel, DType dtype = DType::kFloat32,
                          bool trainable = true) {
  return {.fqn = std::move(fqn),
          .shape = {numel},
          .strides = {1},
          .dtype = dtype,
          .trainable = trainable,
          .numel = numel};
}

}  // namespace fsdp::testing

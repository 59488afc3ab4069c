// Implements the arithmetic of kernels/digest.h.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"

namespace fsdp::kernels {

// Returns the term of the word at index i.
FSDP_ELEMENT uint64_t digest_term(uint64_t word, int64_t i) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  uint64_t mixed = (word ^ (static_cast<uint64_t>(i + 1) * kFactor)) * kFactor;
  // Without this line, two changed sign bits could cancel.
  mixed = (mixed ^ (mixed >> 32)) * kFactor;
  return mixed ^ (mixed >> 32);
}

}  // namespace fsdp::kernels

// Implements the arithmetic of kernels/grad_norm.h that all devices share.
#pragma once

#include <cstdint>

#include "kernels/element/element.h"
#include "kernels/grad_norm.h"

namespace fsdp::kernels {

inline constexpr int64_t kNormBlock = 1024;  // elements of a block
inline constexpr int kNormSums = 8;          // sums of a block

FSDP_ELEMENT bool is_finite(double value) {
  return (bits_as<uint64_t>(value) >> 52 & 0x7ffU) != 0x7ffU;
}
FSDP_ELEMENT bool is_finite(float value) {
  return (bits_as<uint32_t>(value) & 0x7f800000U) != 0x7f800000U;
}

// Returns the parent of two neighbours in the tree. The parent is the sum of both or, for the
// infinity norm, the larger one. NaN is above every number, as in torch.
FSDP_ELEMENT double join_powers(NormType type, double left, double right) {
  if (type != NormType::kInf) return left + right;
  return left != left || left > right ? left : right;
}

// Returns `power`, but replaces every NaN by the same bit pattern, because the sign and payload of
// a sum's NaN depend on the machine.
FSDP_ELEMENT double one_nan(double power) {
  return power == power ? power : bits_as<double>(uint64_t{0x7ff8000000000000});
}

// Implements clip_coefficient in torch's order: the norm is rounded to fp32 before the division.
FSDP_ELEMENT void clip_element(const GradNorm& reduced, NormType type, double max_norm,
                               const ClipOutputs& outputs) {
  const double exact = type == NormType::kTwo ? root(reduced.power) : reduced.power;
  const auto norm = static_cast<float>(exact);
  float coefficient = 1.0F;
  if (is_finite(max_norm)) {
    const float ratio = static_cast<float>(max_norm) / (norm + 1e-6F);
    coefficient = ratio > 1.0F ? 1.0F : ratio;  // a NaN is kept
  }
  if (outputs.norm != nullptr) *outputs.norm = norm;
  if (outputs.coefficient != nullptr) *outputs.coefficient = coefficient;
  if (outputs.found_inf != nullptr) *outputs.found_inf = reduced.non_finite != 0 ? 1.0F : 0.0F;
}

}  // namespace fsdp::kernels

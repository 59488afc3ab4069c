#include <fmt/format.h>
#include <fsdp/error.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu_table.h"
#include "kernels/grad_norm.h"
#include "kernels/target_clones.h"

namespace fsdp::kernels {
namespace {

// Vectors of fixed width: the partial sums, hence the order of summation, are the same on every
// instruction set, which only decides how many registers hold one.
constexpr int64_t kLanes = 4;
constexpr int64_t kVectors = 8;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Bits __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef double Doubles __attribute__((vector_size(kLanes * sizeof(double))));

template <NormType kType>
FSDP_INLINE double sum_of_terms(const float* grad, int64_t numel) {
  Doubles sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kVectors * kLanes <= numel; i += kVectors * kLanes) {
    for (int64_t v = 0; v < kVectors; ++v) {
      if constexpr (kType == NormType::kTwo) {
        Floats x;
        std::memcpy(&x, grad + i + v * kLanes, sizeof x);
        const Doubles wide = __builtin_convertvector(x, Doubles);
        sums[v] += wide * wide;
      } else {
        Bits bits;
        std::memcpy(&bits, grad + i + v * kLanes, sizeof bits);
        const auto magnitude = reinterpret_cast<Floats>(bits & 0x7fffffff);
        sums[v] += __builtin_convertvector(magnitude, Doubles);
      }
    }
  }
  Doubles sum = {};
  for (const Doubles& partial : sums) sum += partial;
  double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (; i < numel; ++i) {
    const double magnitude = std::fabs(static_cast<double>(grad[i]));
    total += kType == NormType::kTwo ? magnitude * magnitude : magnitude;
  }
  return total;
}

// Of non-negative floats, infinity and NaN the bits order as the values do, with NaN on top.
FSDP_INLINE double largest_magnitude(const float* grad, int64_t numel) {
  int32_t largest = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(grad[i]) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

FSDP_TARGET_CLONES
double power_of(const GradSegment& segment, NormType type) {
  switch (type) {
    case NormType::kOne:
      return sum_of_terms<NormType::kOne>(segment.grad, segment.numel);
    case NormType::kTwo:
      return sum_of_terms<NormType::kTwo>(segment.grad, segment.numel);
    case NormType::kInf:
      return largest_magnitude(segment.grad, segment.numel);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// NaN wins, as in torch.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               GradNorm* result) {
  run_over_table(stream, segments, [type, result](std::span<const GradSegment> table) {
    GradNorm norm;
    for (size_t i = 0; i < table.size(); ++i) {
      const double power = power_of(table[i], type);
      // Squares and sums of finite floats cannot leave the range of double, so this sees exactly
      // the elements that are not finite, without a look at each.
      if (!std::isfinite(power) && norm.first_non_finite < 0) {
        norm.first_non_finite = static_cast<int64_t>(i);
        norm.non_finite = 1;
      }
      norm.power = type == NormType::kInf ? larger(norm.power, power) : norm.power + power;
    }
    *result = norm;
  });
}

void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs) {
  if (!(max_norm >= 0)) {
    throw InvalidArgument({.what = fmt::format("clip_coefficient: max_norm is {}", max_norm),
                           .hint = "a number that is not negative; infinity to clip nothing"});
  }
  cpu_stream(stream).run([=] {
    const double root = type == NormType::kTwo ? std::sqrt(reduced->power) : reduced->power;
    const auto norm = static_cast<float>(root);
    float coefficient = 1.0F;
    if (!std::isinf(max_norm)) {
      const float ratio = static_cast<float>(max_norm) / (norm + 1e-6F);
      coefficient = ratio > 1.0F ? 1.0F : ratio;
    }
    if (outputs.norm != nullptr) *outputs.norm = norm;
    if (outputs.coefficient != nullptr) *outputs.coefficient = coefficient;
    if (outputs.found_inf != nullptr) *outputs.found_inf = reduced->non_finite != 0 ? 1.0F : 0.0F;
  });
}

}  // namespace fsdp::kernels

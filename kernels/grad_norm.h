// The norm of all gradients, whether they are finite, and the factor that clips them: everything
// stays in device memory, so that a step needs no host read-back.
//
// Use: grad_norm on this rank's shards; one all_reduce of the first two members of the result
// (kReducedNumel float64, kSum for norms 1 and 2, kMax for inf) an axis of the mesh; then
// clip_coefficient, whose outputs the optimizer's kernels read through pointers.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

enum class NormType : uint8_t { kOne, kTwo, kInf };

struct GradSegment {
  const float* grad = nullptr;
  int64_t numel = 0;
};

struct GradNorm {
  static constexpr int64_t kReducedNumel = 2;

  double power = 0;       // sum of |x|, sum of x², or the largest |x|; infinite or NaN exactly if
                          // some element is
  double non_finite = 0;  // 1 if some element is infinite or NaN, else 0; > 0 after a reduction
  int64_t first_non_finite = -1;  // index of the first segment with such an element; -1: none
};

// Writes *result, in device memory. Sums are formed in float64 in an order that depends on the
// segments' sizes only, so that equal tables give equal bits on every machine. No segments: zeros.
void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               GradNorm* result);

// What clip_coefficient writes; all in device memory, null: not wanted.
struct ClipOutputs {
  float* norm = nullptr;         // the norm: root of the power where the type asks for it
  float* coefficient = nullptr;  // min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_
  float* found_inf = nullptr;    // 1 if some element was not finite, else 0
};

// Turns the reduced result into what optimizers read. If an element was not finite, norm is
// infinite or NaN and coefficient 0 or NaN, as torch has them: look at found_inf. `max_norm` may be
// infinite: coefficient is then 1 whatever the norm.
// Errors: InvalidArgument if max_norm is negative or NaN.
void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs);

}  // namespace fsdp::kernels

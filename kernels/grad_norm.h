// Computes the norm of all gradients, a flag for infinite or NaN ones, and the factor that clips
// them. Everything stays in device memory, so that a step needs no host read-back.
//
// Use: grad_norm on this rank's shards; for each axis of the mesh one all_reduce of the result as
// float64 (kSum for norms 1 and 2, kMax for inf); then clip_coefficient, whose outputs the
// optimizer's kernels read through pointers.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

enum class NormType : uint8_t { kOne, kTwo, kInf };

// A run of contiguous gradients in device memory.
struct GradSegment {
  const float* grad = nullptr;
  int64_t numel = 0;
  int64_t position = 0;  // the caller's number of the first element, for first_non_finite
};

// The result of grad_norm, which ranks reduce as two float64.
struct GradNorm {
  double power = 0;       // sum of |x|, sum of x², or the largest |x|; infinite or NaN exactly if
                          // some element is
  double non_finite = 0;  // 1 if some element is infinite or NaN, else 0; > 0 after a reduction
};

// Pointers that grad_norm writes to; all in device memory.
struct NormOutputs {
  GradNorm* norm = nullptr;
  // 1 + the position of the first element that is not finite, in the table's order; 0 if there is
  // none. A float64, so that ranks can reduce it with the rest. Null: not wanted.
  double* first_non_finite = nullptr;
  // norm_scratch_bytes() bytes for intermediate results, aligned to 16. No other work may use them
  // until the stream has passed the call.
  void* scratch = nullptr;
};

// Returns the scratch bytes of a call with these segments on the stream's device; 0 on the CPU.
int64_t norm_scratch_bytes(const Stream& stream, std::span<const GradSegment> segments);

// Measures all segments together. Without elements, it writes zeros.
//
// Sums have one order, a function of the segments' sizes alone. So the bits are the same with every
// instruction set, number of threads and device:
// 1. A segment is cut into blocks of 1,024 elements; its last one may be shorter, and an empty
//    segment has none. The blocks of all segments form one list, in the table's order.
// 2. A block has 8 sums in float64, each from zero: to sum j it adds, in order of i, the terms of
//    its elements i with i % 8 == j. A term is |x| or x² of x as float64, subnormals included. The
//    term is exact, so a fused multiply-add may add it. Missing elements may count as zeros.
// 3. A block's result is ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)): sum j adds j + 4, then
//    j + 2, then j + 1, as lanes that shuffle do.
// 4. A tree reduces the list: results 2k and 2k + 1 are added and form result k of the next level;
//    the last of an odd level moves to the next level unchanged. The root is the power.
// A GPU warp processes four whole blocks at once, with sum l % 8 of block l / 8 in lane l, and
// writes their results to an array, of which any aligned 2^n form a subtree. The largest |x| needs
// no order. A power that is not a number is the quiet NaN with positive sign (0x7ff8000000000000).
void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs);

// Pointers that clip_coefficient writes to; all in device memory, null: not wanted.
struct ClipOutputs {
  float* norm = nullptr;         // root of the power for norm 2, else the power
  float* coefficient = nullptr;  // min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_
  float* found_inf = nullptr;    // 1 if some element was not finite, else 0
};

// Computes the optimizer's inputs from the reduced result. If an element was not finite, norm is
// infinite or NaN and coefficient 0 or NaN, as in torch: check found_inf. With an infinite
// `max_norm` coefficient is always 1.
// Errors: InvalidArgument if max_norm is negative or NaN.
void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs);

}  // namespace fsdp::kernels

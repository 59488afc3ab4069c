// Computes the norm of all gradients, a flag for infinite or NaN gradients, and the factor that
// clips them. All results stay in device memory, so that a step needs no read-back to the host.
//
// Usage: call grad_norm on this rank's shards. For each axis of the mesh, all_reduce its result as
// float64 (kSum for norms 1 and 2, kMax for inf). Then call clip_coefficient. The optimizer's
// kernels read the outputs of clip_coefficient through pointers.
#pragma once

#include <cstdint>
#include <span>

namespace fsdp {
class Stream;
}

namespace fsdp::kernels {

enum class NormType : uint8_t { kOne, kTwo, kInf };

// A contiguous run of gradients in device memory.
struct GradSegment {
  const float* grad = nullptr;
  int64_t numel = 0;
  int64_t position = 0;  // the caller's number of the first element; used by first_non_finite
};

// The result of grad_norm. Ranks all_reduce its two members as an array of two float64.
struct GradNorm {
  double power = 0;       // sum of |x|, sum of x², or the largest |x|; infinite or NaN exactly if
                          // some element is
  double non_finite = 0;  // 1 if some element is infinite or NaN, else 0; > 0 after a reduction
};

// The pointers to which grad_norm writes. All point to device memory.
struct NormOutputs {
  GradNorm* norm = nullptr;
  // 1 + the position of the first non-finite element in the order of the table; 0 if all elements
  // are finite. It is a float64, so that ranks can reduce it with the other results. Null: not
  // computed.
  double* first_non_finite = nullptr;
  // Scratch of norm_scratch_bytes() bytes for intermediate results, aligned to 16. No other work
  // may use it until the stream has finished the work of this call.
  void* scratch = nullptr;
};

// Returns the bytes of scratch that a call with these segments needs on the stream's device; 0 on
// the CPU.
int64_t norm_scratch_bytes(const Stream& stream, std::span<const GradSegment> segments);

// Computes one norm over all segments. If there are no elements, writes zeros.
//
// The order of the sums depends only on the sizes of the segments. So the bits are the same for
// every instruction set, number of threads and device:
// 1. A segment is cut into blocks of 1,024 elements. Its last block may be shorter, and an empty
//    segment has no block. The blocks of all segments form one list, in the order of the table.
// 2. A block has 8 sums in float64, which start at zero. Sum j adds the terms of the elements i
//    with i % 8 == j, in the order of i. A term is |x| or x² of x as float64, subnormals included.
//    A term is exact, so a fused multiply-add may add it. Missing elements may count as zeros.
// 3. A block's result is ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)): sum j adds j + 4, then
//    j + 2, then j + 1. Lanes that shuffle add in this order.
// 4. A tree reduces the list. Results 2k and 2k + 1 are added and form result k of the next level.
//    The last result of an odd level moves to the next level unchanged. The root is the power.
// A GPU warp processes four whole blocks at a time. Lane l holds sum l % 8 of block l / 8. The warp
// writes the results to an array in which any aligned 2^n results form a subtree. The largest |x|
// needs no order. If the power is NaN, it is the quiet NaN with positive sign (0x7ff8000000000000).
void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs);

// The pointers to which clip_coefficient writes. All point to device memory. Null: not computed.
struct ClipOutputs {
  float* norm = nullptr;         // root of the power for norm 2; otherwise the power
  float* coefficient = nullptr;  // min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_
  float* found_inf = nullptr;    // 1 if some element is not finite, else 0
};

// Computes the optimizer's inputs from the reduced result. If an element is not finite, norm is
// infinite or NaN and coefficient is 0 or NaN, as in torch. The caller must check found_inf. If
// `max_norm` is infinite, coefficient is always 1.
// Errors: InvalidArgument if max_norm is negative or NaN.
void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs);

}  // namespace fsdp::kernels

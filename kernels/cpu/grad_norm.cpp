#include "kernels/element/grad_norm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"

namespace fsdp::kernels::cpu {
namespace {

// The header (kernels/grad_norm.h) defines the order of summation. The code below chooses only how
// many blocks it reads at a time.
constexpr int64_t kBlock = 1024;
constexpr int64_t kSums = 8;
constexpr int64_t kLanes = 4;
constexpr int64_t kVectors = kSums / kLanes;
// A core uses more of the memory bandwidth if it reads several addresses, some pages apart, at a
// time. The sums of four blocks also keep enough additions in flight to hide their latency.
constexpr int64_t kPlaces = 4;
constexpr int64_t kRounds = 16;
constexpr int64_t kPrefetch = 768;  // elements ahead, chosen by measurement
constexpr int64_t kGroup = kPlaces * kRounds;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t Bits __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef double Doubles __attribute__((vector_size(kLanes * sizeof(double))));
typedef int64_t WideBits __attribute__((vector_size(kLanes * sizeof(int64_t))));

// The partial sums of a block, or its largest |x|. Without the sign bit, the bits of floats compare
// as integers in the order of their values. Infinity is above all numbers and NaN is above
// infinity. So the maximum is computed on integers.
template <NormType kType>
using Partial = std::conditional_t<kType == NormType::kInf, Bits, Doubles>;

// Adds the terms of kLanes elements to their sums. `one` is 1, but the compiler must not know that.
// So for norm 1 the compiler turns |x| * one + sum into a fused multiply-add. This is faster than
// an addition, because the adders are busy with the conversions to double. Contraction is allowed
// in this file only, because its products are exact.
template <NormType kType>
FSDP_INLINE void add_terms(Partial<kType>& partial, const float* grad, double one) {
  if constexpr (kType == NormType::kInf) {
    Bits magnitude;
    std::memcpy(&magnitude, grad, sizeof magnitude);
    magnitude &= 0x7fffffff;
    partial = magnitude > partial ? magnitude : partial;
  } else {
    Floats x;
    std::memcpy(&x, grad, sizeof x);
    // GCC 12 compiles this form to one instruction, and __builtin_convertvector to four.
    const Doubles wide = {x[0], x[1], x[2], x[3]};
    if constexpr (kType == NormType::kTwo) {
      partial += wide * wide;
    } else {
      const WideBits magnitude = reinterpret_cast<WideBits>(wide) & 0x7fffffffffffffff;
      partial += reinterpret_cast<Doubles>(magnitude) * one;
    }
  }
}

// Returns the result of a block from its 8 sums. Sum j is in lane j % 4 of vector j / 4, so the
// first addition adds sums j and j + 4.
template <NormType kType>
FSDP_INLINE double block_result(const Partial<kType> (&partial)[kVectors]) {
  if constexpr (kType == NormType::kInf) {
    const Bits largest = partial[0] > partial[1] ? partial[0] : partial[1];
    return std::bit_cast<float>(
        std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3])));
  } else {
    const Doubles sum = partial[0] + partial[1];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
  }
}

// Reduces whole blocks at kPlaces addresses, which are `distance` blocks apart.
template <NormType kType>
FSDP_INLINE void reduce_places(const float* grad, int64_t distance, double one, double* results) {
  Partial<kType> partial[kPlaces][kVectors] = {};
  for (int64_t i = 0; i < kBlock; i += kSums) {
#pragma GCC unroll 4
    for (int64_t place = 0; place < kPlaces; ++place) {
      __builtin_prefetch(grad + place * distance * kBlock + i + kPrefetch);
#pragma GCC unroll 2
      for (int64_t v = 0; v < kVectors; ++v) {
        add_terms<kType>(partial[place][v], grad + place * distance * kBlock + i + v * kLanes, one);
      }
    }
  }
  for (int64_t place = 0; place < kPlaces; ++place) {
    results[place * distance] = block_result<kType>(partial[place]);
  }
}

// Reduces one block. If this is the last block of a segment, it may have fewer elements than
// kBlock.
template <NormType kType>
FSDP_INLINE double reduce_block(const float* grad, int64_t numel, double one) {
  Partial<kType> partial[kVectors] = {};
  const int64_t whole = numel - numel % kSums;
  for (int64_t i = 0; i < whole; i += kSums) {
    for (int64_t v = 0; v < kVectors; ++v) add_terms<kType>(partial[v], grad + i + v * kLanes, one);
  }
  if (whole < numel) {
    // The last elements are padded with zeros. Adding zero changes no sum, because no sum is -0.
    float padded[kSums] = {};
    std::memcpy(padded, grad + whole, static_cast<size_t>(numel - whole) * sizeof(float));
    for (int64_t v = 0; v < kVectors; ++v) add_terms<kType>(partial[v], padded + v * kLanes, one);
  }
  return block_result<kType>(partial);
}

// Reduces up to kGroup blocks. A full group is read in kRounds rounds, at addresses that are
// kRounds blocks (64 KiB) apart. The results are still returned in the order of the blocks.
template <NormType kType>
FSDP_INLINE void reduce_group(const float* grad, int64_t numel, double one, double* results) {
  if (numel == kGroup * kBlock) {
    for (int64_t i = 0; i < kRounds; ++i) {
      reduce_places<kType>(grad + i * kBlock, kRounds, one, results + i);
    }
    return;
  }
  int64_t start = 0;
  for (; start + kPlaces * kBlock <= numel; start += kPlaces * kBlock, results += kPlaces) {
    reduce_places<kType>(grad + start, 1, one, results);
  }
  for (; start < numel; start += kBlock) {
    *results++ = reduce_block<kType>(grad + start, std::min(kBlock, numel - start), one);
  }
}

// Writes the results of up to kGroup contiguous blocks.
FSDP_TARGET_CLONES
void reduce_blocks(NormType type, const GradSegment& blocks, double one, double* results) {
  switch (type) {
    case NormType::kOne:
      return reduce_group<NormType::kOne>(blocks.grad, blocks.numel, one, results);
    case NormType::kTwo:
      return reduce_group<NormType::kTwo>(blocks.grad, blocks.numel, one, results);
    case NormType::kInf:
      return reduce_group<NormType::kInf>(blocks.grad, blocks.numel, one, results);
  }
}

// The tree over the blocks, which is built while results arrive. A node is joined with its
// neighbour as soon as both exist, so the stack holds at most one node for each level.
class BlockTree {
 public:
  explicit BlockTree(NormType type) : type_(type) {}

  void add(double result) {
    // `blocks_` works like a binary counter: each trailing 1 bit is a left node that waits to be
    // joined.
    for (int64_t pairs = blocks_++; pairs % 2 != 0; pairs /= 2) result = join(pop(), result);
    nodes_[depth_++] = result;
  }

  double root() {
    if (depth_ == 0) return 0;
    double result = pop();
    // The last node of an odd level moves up unchanged until a left neighbour exists.
    while (depth_ > 0) result = join(pop(), result);
    // The sign and payload of a sum's NaN depend on the machine, so every NaN is replaced by the
    // same one.
    return std::isnan(result) ? std::numeric_limits<double>::quiet_NaN() : result;
  }

 private:
  double pop() { return nodes_[--depth_]; }
  double join(double left, double right) const { return join_powers(type_, left, right); }

  NormType type_;
  int64_t blocks_ = 0;
  size_t depth_ = 0;
  double nodes_[64];
};

// Adds the blocks of a segment. Returns the index of the first element of the first block whose
// result is not finite; returns -1 if all results are finite. Squares and sums of finite floats
// stay in the range of double, so only a block with an infinite or NaN element has a non-finite
// result.
int64_t add_segment(const GradSegment& segment, NormType type, BlockTree& tree) {
  volatile double one = 1;  // volatile hides the value from the compiler (see add_terms)
  int64_t first = -1;
  double results[kGroup];
  for (int64_t start = 0; start < segment.numel; start += kGroup * kBlock) {
    const int64_t numel = std::min(kGroup * kBlock, segment.numel - start);
    reduce_blocks(type, {segment.grad + start, numel}, one, results);
    for (int64_t block = 0; block * kBlock < numel; ++block) {
      if (first < 0 && !std::isfinite(results[block])) first = start + block * kBlock;
      tree.add(results[block]);
    }
  }
  return first;
}

}  // namespace

void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs) {
  run_over_table(stream, segments, [=](std::span<const GradSegment> table) {
    GradNorm norm;
    double first = 0;
    BlockTree tree(type);
    for (const GradSegment& segment : table) {
      int64_t element = add_segment(segment, type, tree);
      if (element < 0 || norm.non_finite != 0) continue;
      norm.non_finite = 1;
      // The block is searched only now, because non-finite elements are rare.
      while (std::isfinite(segment.grad[element])) ++element;
      first = static_cast<double>(1 + segment.position + element);
    }
    norm.power = tree.root();
    *outputs.norm = norm;
    if (outputs.first_non_finite != nullptr) *outputs.first_non_finite = first;
  });
}

int64_t norm_scratch_bytes(std::span<const GradSegment>) { return 0; }

void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs) {
  cpu_stream(stream).run([=] { clip_element(*reduced, type, max_norm, outputs); });
}

}  // namespace fsdp::kernels::cpu

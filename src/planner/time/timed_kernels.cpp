#include "planner/time/timed_kernels.h"

#include <string_view>

#include "planner/time/timed_stream.h"

namespace fsdp {
namespace {

using namespace kernels;

// `name` is one of kTimedKernels, or empty for a kernel of few bytes.
void take(Stream& stream, TimedKind kind, std::string_view name, int64_t bytes) {
  static_cast<TimedStream&>(stream).kernel(kind, name, static_cast<double>(bytes));
}

void accumulate_timed(Stream& stream, std::span<const AccumulateRun> runs, float /*scale*/) {
  int64_t bytes = 0;
  for (const AccumulateRun& run : runs) {
    bytes += run.numel *
             (size_of(run.source_dtype) + (run.overwrite ? 1 : 2) * size_of(run.destination_dtype));
  }
  take(stream, TimedKind::kKernels, "accumulate", bytes);
}

void accumulate_strided_timed(Stream& stream, const StridedSource& source, void* /*destination*/,
                              DType dtype, float /*scale*/) {
  take(stream, TimedKind::kKernels, "accumulate",
       source.numel() * (size_of(source.dtype) + 2 * size_of(dtype)));
}

void cast_pack_timed(Stream& stream, std::span<const CastRun> runs, float /*scale*/) {
  int64_t bytes = 0;
  for (const CastRun& run : runs) {
    bytes += run.numel * (size_of(run.source_dtype) + size_of(run.destination_dtype));
  }
  take(stream, TimedKind::kKernels, "cast_pack", bytes);
}

void cast_pack_strided_timed(Stream& stream, const StridedSource& source, void* /*destination*/,
                             DType dtype, float /*scale*/) {
  take(stream, TimedKind::kKernels, "cast_pack",
       source.numel() * (size_of(source.dtype) + size_of(dtype)));
}

void clip_coefficient_timed(Stream& stream, const GradNorm*, NormType, double, const ClipOutputs&) {
  take(stream, TimedKind::kOptimizer, {}, sizeof(GradNorm));
}

void count_steps_timed(Stream& stream, std::span<StepCount* const> counters, const StepBetas&,
                       const float*) {
  take(stream, TimedKind::kOptimizer, {},
       static_cast<int64_t>(2 * sizeof(StepCount) * counters.size()));
}

void digest_timed(Stream& stream, std::span<const DigestRun> runs) {
  int64_t bytes = 0;
  for (const DigestRun& run : runs) bytes += run.bytes;
  take(stream, TimedKind::kKernels, "digest", bytes);
}

void fill_timed(Stream& stream, std::span<const FillRun> runs) {
  int64_t bytes = 0;
  for (const FillRun& run : runs) bytes += run.numel * size_of(run.dtype);
  take(stream, TimedKind::kKernels, "fill", bytes);
}

void grad_norm_timed(Stream& stream, std::span<const GradSegment> segments, NormType,
                     const NormOutputs&) {
  int64_t bytes = 0;
  for (const GradSegment& each : segments) bytes += each.numel * size_of(DType::kFloat32);
  take(stream, TimedKind::kOptimizer, "grad_norm", bytes);
}

void mark_time_timed(Stream&, int64_t*) {}

void pause_since_timed(Stream& stream, std::span<const int64_t>, int64_t ns) {
  static_cast<TimedStream&>(stream).issue(
      {.kind = TimedKind::kKernels, .ns = static_cast<double>(ns)});
}

void reduce_timed(Stream& stream, std::span<const ReduceRun> runs, ReduceOp) {
  int64_t bytes = 0;
  for (const ReduceRun& run : runs) {
    bytes += run.numel * size_of(run.dtype) * (static_cast<int64_t>(run.sources.size()) + 1);
  }
  take(stream, TimedKind::kKernels, "reduce", bytes);
}

// Returns the bytes of an element that an update reads and writes, without its moments.
int64_t element_bytes(const UpdateSegment& segment) {
  constexpr int64_t kParamAndGradient = 12;  // fp32, the parameter twice
  return kParamAndGradient +
         (segment.low_precision_copy == nullptr ? 0 : size_of(segment.low_precision_dtype));
}

int64_t update_bytes(const UpdateSegment& segment) {
  int64_t each = element_bytes(segment);
  for (const float* moment : segment.moments) each += moment == nullptr ? 0 : 2 * 4;
  return segment.numel * each;
}

void sum_squares_timed(Stream& stream, std::span<const SumNode> nodes, const UpdateRule&,
                       const float*, void*) {
  int64_t bytes = 0;
  for (const SumNode& node : nodes) bytes += update_bytes(node.elements) / 2;  // reads only
  take(stream, TimedKind::kOptimizer, "update", bytes);
}

void trust_ratios_timed(Stream& stream, std::span<const TrustParameter> parameters, SquareSums*,
                        const TrustFormula&) {
  int64_t joins = 0;
  for (const TrustParameter& each : parameters) joins += each.join_count;
  take(stream, TimedKind::kOptimizer, {}, joins * static_cast<int64_t>(sizeof(SquareSums)));
}

void update_timed(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule&,
                  const UpdateScalars&) {
  int64_t bytes = 0;
  for (const UpdateSegment& each : segments) bytes += update_bytes(each);
  take(stream, TimedKind::kOptimizer, "update", bytes);
}

void update_blocks_timed(Stream& stream, std::span<const BlockSegment> segments, const AdamW&,
                         const UpdateScalars&) {
  constexpr int64_t kCodes = 4;  // two codes, read and written
  int64_t bytes = 0;
  for (const BlockSegment& each : segments) {
    bytes += each.elements.numel * (element_bytes(each.elements) + kCodes);
  }
  take(stream, TimedKind::kOptimizer, "update_blocks", bytes);
}

}  // namespace

const KernelTable& timed_kernels() {
  static const KernelTable kTable{
      .accumulate = accumulate_timed,
      .accumulate_strided = accumulate_strided_timed,
      .cast_pack = cast_pack_timed,
      .cast_pack_strided = cast_pack_strided_timed,
      .clip_coefficient = clip_coefficient_timed,
      .count_steps = count_steps_timed,
      .digest = digest_timed,
      .fill_nan = fill_timed,
      .fill_zero = fill_timed,
      .grad_norm = grad_norm_timed,
      .mark_time = mark_time_timed,
      // The engine allocates a buffer of the size that the CPU kernel needs.
      .norm_scratch_bytes = cpu_kernels().norm_scratch_bytes,
      .pause_since = pause_since_timed,
      .reduce = reduce_timed,
      .sum_squares = sum_squares_timed,
      .trust_ratios = trust_ratios_timed,
      .update = update_timed,
      .update_blocks = update_blocks_timed,
  };
  return kTable;
}

}  // namespace fsdp

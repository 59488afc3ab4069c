// Declares the CPU's kernels. Callers use kernels/x.h, which checks the arguments. These functions
// do not check them.
#pragma once

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cpu {

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale);
void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale);
void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale);
void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale);
void clip_coefficient(Stream& stream, const GradNorm* reduced, NormType type, double max_norm,
                      const ClipOutputs& outputs);
void count_steps(Stream& stream, std::span<StepCount* const> counters, const StepBetas& betas,
                 const float* found_inf);
void digest(Stream& stream, std::span<const DigestRun> runs);
void fill_nan(Stream& stream, std::span<const FillRun> runs);
void fill_zero(Stream& stream, std::span<const FillRun> runs);
void grad_norm(Stream& stream, std::span<const GradSegment> segments, NormType type,
               const NormOutputs& outputs);
void mark_time(Stream& stream, int64_t* ns);
int64_t norm_scratch_bytes(std::span<const GradSegment> segments);
void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns);
void reduce(Stream& stream, std::span<const ReduceRun> runs, ReduceOp op);
void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch);
void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula);
void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars);
void update_blocks(Stream& stream, std::span<const BlockSegment> segments, const AdamW& rule,
                   const UpdateScalars& scalars);

}  // namespace fsdp::kernels::cpu

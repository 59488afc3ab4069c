// Declares the GPU's kernels. Callers use kernels/x.h, which checks the arguments. These functions
// do not check them. The stream must be a GPU stream. A call issues launches to it and returns.
#pragma once

#include "kernels/kernel_table.h"

namespace fsdp::kernels::cuda {

const KernelTable& kernel_table();

// Loads every kernel onto the current device. Without this, CUDA would load each kernel at its
// first launch, and such a load can block until other work ends.
// Errors: DeviceError, which names the kernel.
void load_kernels();

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

// Each of these functions loads the kernels of one file. load_kernels() calls all of them.
void load_accumulate();
void load_cast_pack();
void load_count_steps();
void load_digest();
void load_fill();
void load_grad_norm();
void load_pause();
void load_reduce();
void load_strided();
void load_trust_ratios();
void load_update();
void load_update_blocks();

}  // namespace fsdp::kernels::cuda

// Lists every kernel of one kind of device. The functions of kernels/x.h check their arguments once
// and then call the kernel of the stream's device. A device whose code is loaded at run time has
// its own table.
#pragma once

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/count_steps.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/grad_norm.h"
#include "kernels/pause.h"
#include "kernels/reduce.h"
#include "kernels/trust_ratios.h"
#include "kernels/update.h"
#include "kernels/update_blocks.h"

namespace fsdp::kernels {

// Pointers to the kernels of a device. Each kernel has the signature of the checked function with
// the same name.
struct KernelTable {
  void (*accumulate)(Stream&, std::span<const AccumulateRun>, float scale);
  void (*accumulate_strided)(Stream&, const StridedSource&, void* destination, DType, float scale);
  void (*cast_pack)(Stream&, std::span<const CastRun>, float scale);
  void (*cast_pack_strided)(Stream&, const StridedSource&, void* destination, DType, float scale);
  void (*clip_coefficient)(Stream&, const GradNorm*, NormType, double max_norm, const ClipOutputs&);
  void (*count_steps)(Stream&, std::span<StepCount* const>, const StepBetas&,
                      const float* found_inf);
  void (*digest)(Stream&, std::span<const DigestRun>);
  void (*fill_nan)(Stream&, std::span<const FillRun>);
  void (*fill_zero)(Stream&, std::span<const FillRun>);
  void (*grad_norm)(Stream&, std::span<const GradSegment>, NormType, const NormOutputs&);
  void (*mark_time)(Stream&, int64_t* ns);
  int64_t (*norm_scratch_bytes)(std::span<const GradSegment>);
  void (*pause_since)(Stream&, std::span<const int64_t> marks, int64_t ns);
  void (*reduce)(Stream&, std::span<const ReduceRun>, ReduceOp);
  void (*sum_squares)(Stream&, std::span<const SumNode>, const UpdateRule&, const float* grad_scale,
                      void* scratch);
  void (*trust_ratios)(Stream&, std::span<const TrustParameter>, SquareSums*, const TrustFormula&);
  void (*update)(Stream&, std::span<const UpdateSegment>, const UpdateRule&, const UpdateScalars&);
  void (*update_blocks)(Stream&, std::span<const BlockSegment>, const AdamW&, const UpdateScalars&);
};

// Returns the CPU kernels. Tests compare the kernels of all other tables with them.
const KernelTable& cpu_kernels();

// Returns the kernels of the stream's device.
const KernelTable& kernels_of(const Stream& stream);

}  // namespace fsdp::kernels

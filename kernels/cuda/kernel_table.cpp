#include "kernels/kernel_table.h"

#include "kernels/cuda/kernels.h"

namespace fsdp::kernels::cuda {

const KernelTable& kernel_table() {
  static constexpr KernelTable kTable{.accumulate = accumulate,
                                      .accumulate_strided = accumulate_strided,
                                      .cast_pack = cast_pack,
                                      .cast_pack_strided = cast_pack_strided,
                                      .clip_coefficient = clip_coefficient,
                                      .count_steps = count_steps,
                                      .digest = digest,
                                      .fill_nan = fill_nan,
                                      .fill_zero = fill_zero,
                                      .grad_norm = grad_norm,
                                      .mark_time = mark_time,
                                      .norm_scratch_bytes = norm_scratch_bytes,
                                      .pause_since = pause_since,
                                      .reduce = reduce,
                                      .sum_squares = sum_squares,
                                      .trust_ratios = trust_ratios,
                                      .update = update,
                                      .update_blocks = update_blocks};
  return kTable;
}

// The list is written by hand. A kernel that is missing here is loaded at its first launch (see
// kernels.h).
void load_kernels() {
  for (void (*const load)() : {load_accumulate, load_cast_pack, load_count_steps, load_digest,
                               load_fill, load_grad_norm, load_pause, load_reduce, load_strided,
                               load_trust_ratios, load_update, load_update_blocks}) {
    load();
  }
}

}  // namespace fsdp::kernels::cuda

#include "kernels/kernel_table.h"

#include "kernels/cpu/kernels.h"

namespace fsdp::kernels {

const KernelTable& cpu_kernels() {
  static constexpr KernelTable kTable{.accumulate = cpu::accumulate,
                                      .accumulate_strided = cpu::accumulate_strided,
                                      .cast_pack = cpu::cast_pack,
                                      .cast_pack_strided = cpu::cast_pack_strided,
                                      .clip_coefficient = cpu::clip_coefficient,
                                      .count_steps = cpu::count_steps,
                                      .digest = cpu::digest,
                                      .fill_nan = cpu::fill_nan,
                                      .fill_zero = cpu::fill_zero,
                                      .grad_norm = cpu::grad_norm,
                                      .mark_time = cpu::mark_time,
                                      .norm_scratch_bytes = cpu::norm_scratch_bytes,
                                      .pause_since = cpu::pause_since,
                                      .reduce = cpu::reduce,
                                      .sum_squares = cpu::sum_squares,
                                      .trust_ratios = cpu::trust_ratios,
                                      .update = cpu::update,
                                      .update_blocks = cpu::update_blocks};
  return kTable;
}

}  // namespace fsdp::kernels

#include "kernels/fill.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void fill_zero(Stream& stream, std::span<const FillRun> runs) {
  kernels_of(stream).fill_zero(stream, runs);
}

void fill_nan(Stream& stream, std::span<const FillRun> runs) {
  for (const FillRun& run : runs) {
    if (is_floating(run.dtype)) continue;
    throw InvalidArgument({.what = fmt::format("fill_nan: {} has no NaN", name_of(run.dtype)),
                           .hint = "use fill_zero, or a floating type"});
  }
  kernels_of(stream).fill_nan(stream, runs);
}

}  // namespace fsdp::kernels

#include "kernels/digest.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void digest(Stream& stream, std::span<const DigestRun> runs) {
  for (const DigestRun& run : runs) {
    if (run.bytes % static_cast<int64_t>(sizeof(uint64_t)) == 0) continue;
    throw InvalidArgument(
        {.what = fmt::format("digest: a run has {} bytes, expected a multiple of 8", run.bytes),
         .hint = "pass sizes that are multiples of 8"});
  }
  kernels_of(stream).digest(stream, runs);
}

}  // namespace fsdp::kernels

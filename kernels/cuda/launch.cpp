#include "kernels/cuda/launch.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/element/block_index.h"

namespace fsdp::kernels::cuda {

void refuse_blocks(std::string_view kernel, int64_t blocks) {
  throw InvalidArgument(
      {.what = fmt::format(
           "{}: a segment has {} blocks of {} elements, expected at most 2^31 - 1 blocks", kernel,
           blocks, kBlockNumel),
       .hint = "split the segment"});
}

}  // namespace fsdp::kernels::cuda

#include "kernels/cuda/launch.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/element/block_index.h"

namespace fsdp::kernels::cuda {

void refuse_blocks(std::string_view kernel, int64_t blocks) {
  throw InvalidArgument({.what = fmt::format("{}: a segment of {} blocks of {} elements", kernel,
                                             blocks, kBlockNumel),
                         .hint = "cut it: a launch has at most 2^31 - 1 blocks"});
}

}  // namespace fsdp::kernels::cuda

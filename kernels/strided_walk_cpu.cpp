#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/strided_walk.h"

namespace fsdp::kernels {

void require_dims(std::string_view kernel, const StridedSource& source) {
  if (source.dims >= 0 && source.dims <= kMaxDims) return;
  throw InvalidArgument(
      {.what = fmt::format("{} got a source of {} dimensions", kernel, source.dims),
       .hint = fmt::format("at most {}; make the tensor contiguous first", kMaxDims)});
}

}  // namespace fsdp::kernels

#include "kernels/checks.h"

#include <fmt/format.h>
#include <fsdp/error.h>

namespace fsdp::kernels {
namespace {

bool is_element(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

}  // namespace

void require_elements(std::string_view kernel, DType from, DType to) {
  if (is_element(from) && is_element(to)) return;
  throw InvalidArgument(
      {.what = fmt::format("{} cannot convert {} to {}", kernel, name_of(from), name_of(to)),
       .hint = "convert only between float32, bfloat16 and float16; copy other types without "
               "conversion, with scale 1"});
}

void require_low_precision(std::string_view kernel, DType copy) {
  if (copy == DType::kBFloat16 || copy == DType::kFloat16) return;
  throw InvalidArgument(
      {.what = fmt::format("{} cannot store its low-precision copy of the parameters as {}", kernel,
                           name_of(copy)),
       .hint = "use bfloat16 or float16 for the copy"});
}

void require_dims(std::string_view kernel, const StridedSource& source) {
  if (source.dims >= 0 && source.dims <= kMaxDims) return;
  throw InvalidArgument(
      {.what = fmt::format("{} got a source of {} dimensions, expected at most {}", kernel,
                           source.dims, kMaxDims),
       .hint = "make the tensor contiguous first"});
}

}  // namespace fsdp::kernels

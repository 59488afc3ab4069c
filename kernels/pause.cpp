#include "kernels/pause.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/kernel_table.h"

namespace fsdp::kernels {

void mark_time(Stream& stream, int64_t* ns) { kernels_of(stream).mark_time(stream, ns); }

void pause_since(Stream& stream, std::span<const int64_t> marks, int64_t ns) {
  if (marks.empty() || ns < 0) {
    throw InvalidArgument(
        {.what = fmt::format("pause_since got {} ns and {} marks", ns, marks.size()),
         .hint = "pass a time of 0 or more and at least one mark"});
  }
  kernels_of(stream).pause_since(stream, marks, ns);
}

}  // namespace fsdp::kernels

// Holds the loop that cast_pack and accumulate share. Only accumulate reads the destination.
#pragma once

#include <cstdint>

#include "kernels/cpu/target_clones.h"
#include "kernels/element/scaled.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {

// Converts `numel` elements and stores them. With kAdds, adds them to the destination instead. The
// pointers are not restrict, because a run may be converted in place or added to itself. ivdep is
// valid in that case too: an iteration reads only its own elements, and reads them before it writes
// them.
template <bool kAdds, class From, class To>
FSDP_INLINE void convert_loop(const From* from, int64_t stride, To* to, int64_t numel,
                              float scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const float value = scaled(to_float(from[i * stride]), scale);
    to[i] = from_float<To>(kAdds ? added(to_float(to[i]), value) : value);
  }
}

// Calls visit(from, to) with pointers of the two dtypes.
template <class Visit>
FSDP_INLINE void visit_pair(const void* source, DType source_dtype, void* destination,
                            DType destination_dtype, Visit visit) {
  visit_element(source_dtype, [&](auto from) FSDP_INLINE_LAMBDA {
    visit_element(destination_dtype, [&](auto to) FSDP_INLINE_LAMBDA {
      visit(static_cast<const decltype(from)*>(source), static_cast<decltype(to)*>(destination));
    });
  });
}

}  // namespace fsdp::kernels::cpu

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/strided_walk.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/scaled.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// Not restrict: a run may be added to itself.
template <bool kOverwrite, class From, class To>
FSDP_INLINE void add_loop(const From* from, int64_t stride, To* to, int64_t numel, float scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    const float value = scaled(to_float(from[i * stride]), scale);
    to[i] = from_float<To>(kOverwrite ? value : added(to_float(to[i]), value));
  }
}

FSDP_TARGET_CLONES
void add_run(const AccumulateRun& run, float scale) {
  visit_element(run.source_dtype, [&](auto from_tag) FSDP_INLINE_LAMBDA {
    visit_element(run.destination_dtype, [&](auto to_tag) FSDP_INLINE_LAMBDA {
      const auto* from = static_cast<const decltype(from_tag)*>(run.source);
      auto* to = static_cast<decltype(to_tag)*>(run.destination);
      if (run.overwrite) {
        add_loop<true>(from, 1, to, run.numel, scale);
      } else {
        add_loop<false>(from, 1, to, run.numel, scale);
      }
    });
  });
}

struct StridedAdd {
  FoldedSource folded;
  const void* source;
  void* destination;
  DType source_dtype, destination_dtype;
  float scale;
};

FSDP_TARGET_CLONES
void add_strided(const StridedAdd& add) {
  visit_element(add.source_dtype, [&](auto from_tag) FSDP_INLINE_LAMBDA {
    visit_element(add.destination_dtype, [&](auto to_tag) FSDP_INLINE_LAMBDA {
      const auto* from = static_cast<const decltype(from_tag)*>(add.source);
      auto* to = static_cast<decltype(to_tag)*>(add.destination);
      const float scale = add.scale;
      walk(add.folded, from,
           [=](int64_t at, const decltype(from_tag)* values, int64_t stride, int64_t count)
               FSDP_INLINE_LAMBDA {
                 if (stride == 1) {
                   add_loop<false>(values, 1, to + at, count, scale);
                 } else {
                   add_loop<false>(values, stride, to + at, count, scale);
                 }
               });
    });
  });
}

}  // namespace

void accumulate(Stream& stream, std::span<const AccumulateRun> runs, float scale) {
  run_over_table(stream, runs, [scale](std::span<const AccumulateRun> table) {
    for (const AccumulateRun& run : table) add_run(run, scale);
  });
}

void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale) {
  const StridedAdd add{.folded = fold(source),
                       .source = source.data,
                       .destination = destination,
                       .source_dtype = source.dtype,
                       .destination_dtype = destination_dtype,
                       .scale = scale};
  cpu_stream(stream).run([add] { add_strided(add); });
}

}  // namespace fsdp::kernels::cpu

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/strided_walk.h"
#include "kernels/cpu/target_clones.h"
#include "kernels/element/scaled.h"
#include "kernels/element_cast.h"

namespace fsdp::kernels::cpu {
namespace {

// Not restrict: a run may be cast in place.
template <class From, class To>
FSDP_INLINE void cast_loop(const From* from, int64_t stride, To* to, int64_t numel, float scale) {
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) {
    to[i] = from_float<To>(scaled(to_float(from[i * stride]), scale));
  }
}

template <class Word>
FSDP_INLINE void copy_loop(const Word* from, int64_t stride, Word* to, int64_t numel) {
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) to[i] = from[i * stride];
}

FSDP_TARGET_CLONES
void cast_run(const CastRun& run, float scale) {
  visit_element(run.source_dtype, [&](auto from) FSDP_INLINE_LAMBDA {
    visit_element(run.destination_dtype, [&](auto to) FSDP_INLINE_LAMBDA {
      cast_loop(static_cast<const decltype(from)*>(run.source), 1,
                static_cast<decltype(to)*>(run.destination), run.numel, scale);
    });
  });
}

struct StridedCast {
  FoldedSource folded;
  const void* source;
  void* destination;
  DType source_dtype, destination_dtype;
  float scale;
};

FSDP_TARGET_CLONES
void cast_strided(const StridedCast& cast) {
  visit_element(cast.source_dtype, [&](auto from) FSDP_INLINE_LAMBDA {
    visit_element(cast.destination_dtype, [&](auto to) FSDP_INLINE_LAMBDA {
      const auto* source = static_cast<const decltype(from)*>(cast.source);
      auto* destination = static_cast<decltype(to)*>(cast.destination);
      const float scale = cast.scale;
      walk(cast.folded, source,
           [=](int64_t at, const decltype(from)* values, int64_t stride, int64_t count)
               FSDP_INLINE_LAMBDA {
                 if (stride == 1) {
                   cast_loop(values, 1, destination + at, count, scale);
                 } else {
                   cast_loop(values, stride, destination + at, count, scale);
                 }
               });
    });
  });
}

template <class Word>
FSDP_INLINE void copy_strided(const StridedCast& cast) {
  const auto* source = static_cast<const Word*>(cast.source);
  auto* destination = static_cast<Word*>(cast.destination);
  walk(cast.folded, source,
       [=](int64_t at, const Word* words, int64_t stride, int64_t count) FSDP_INLINE_LAMBDA {
         if (stride == 1) {
           std::memcpy(destination + at, words, static_cast<size_t>(count) * sizeof(Word));
         } else {
           copy_loop(words, stride, destination + at, count);
         }
       });
}

FSDP_TARGET_CLONES
void copy_strided_of_size(const StridedCast& cast) {
  switch (size_of(cast.source_dtype)) {
    case 8:
      return copy_strided<uint64_t>(cast);
    case 4:
      return copy_strided<uint32_t>(cast);
    case 2:
      return copy_strided<uint16_t>(cast);
    default:
      return copy_strided<uint8_t>(cast);
  }
}

}  // namespace

void cast_pack(Stream& stream, std::span<const CastRun> runs, float scale) {
  run_over_table(stream, runs, [scale](std::span<const CastRun> table) {
    for (const CastRun& run : table) {
      if (run.numel == 0) continue;
      if (!is_copy(run.source_dtype, run.destination_dtype, scale)) {
        cast_run(run, scale);
      } else if (run.source != run.destination) {
        const int64_t bytes = run.numel * size_of(run.source_dtype);
        std::memcpy(run.destination, run.source, static_cast<size_t>(bytes));
      }
    }
  });
}

void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale) {
  const bool copy = is_copy(source.dtype, destination_dtype, scale);
  const StridedCast cast{.folded = fold(source),
                         .source = source.data,
                         .destination = destination,
                         .source_dtype = source.dtype,
                         .destination_dtype = destination_dtype,
                         .scale = scale};
  cpu_stream(stream).run([cast, copy] { copy ? copy_strided_of_size(cast) : cast_strided(cast); });
}

}  // namespace fsdp::kernels::cpu

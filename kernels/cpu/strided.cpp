// Implements cast_pack_strided and accumulate_strided, which differ only in the arithmetic of one
// element.
#include <cstring>

#include "kernels/cpu/convert_loop.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/strided_walk.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::kernels::cpu {
namespace {

// The arguments of a call. The arguments are copied, because the caller may free the source
// description before a threaded stream runs the call.
struct Work {
  FoldedSource folded;
  const void* source;
  void* destination;
  DType from, to;
  float scale;
};

template <bool kAdds>
FSDP_TARGET_CLONES void convert(const Work& work) {
  visit_pair(work.source, work.from, work.destination, work.to,
             [&](const auto* from, auto* to) FSDP_INLINE_LAMBDA {
               const float scale = work.scale;
               walk(work.folded, from,
                    [=](int64_t at, const auto* values, int64_t stride, int64_t count)
                        FSDP_INLINE_LAMBDA {
                          // With a constant stride of 1 the compiler emits vector loads in place of
                          // gathers.
                          if (stride == 1) {
                            convert_loop<kAdds>(values, 1, to + at, count, scale);
                          } else {
                            convert_loop<kAdds>(values, stride, to + at, count, scale);
                          }
                        });
             });
}

template <class Word>
FSDP_INLINE void copy_loop(const Word* from, int64_t stride, Word* to, int64_t numel) {
#pragma GCC ivdep
  for (int64_t i = 0; i < numel; ++i) to[i] = from[i * stride];
}

template <class Word>
FSDP_INLINE void copy_words(const Work& work) {
  const auto* source = static_cast<const Word*>(work.source);
  auto* destination = static_cast<Word*>(work.destination);
  walk(work.folded, source,
       [=](int64_t at, const Word* words, int64_t stride, int64_t count) FSDP_INLINE_LAMBDA {
         if (stride == 1) {
           std::memcpy(destination + at, words, static_cast<size_t>(count) * sizeof(Word));
         } else {
           copy_loop(words, stride, destination + at, count);
         }
       });
}

// Copies elements as words of the same size. A copy needs no arithmetic, so any dtype is legal.
FSDP_TARGET_CLONES
void copy(const Work& work) {
  switch (size_of(work.from)) {
    case 8:
      return copy_words<uint64_t>(work);
    case 4:
      return copy_words<uint32_t>(work);
    case 2:
      return copy_words<uint16_t>(work);
    default:
      return copy_words<uint8_t>(work);
  }
}

}  // namespace

void accumulate_strided(Stream& stream, const StridedSource& source, void* destination,
                        DType destination_dtype, float scale) {
  const Work work{fold(source), source.data, destination, source.dtype, destination_dtype, scale};
  cpu_stream(stream).run([work] { convert<true>(work); });
}

void cast_pack_strided(Stream& stream, const StridedSource& source, void* destination,
                       DType destination_dtype, float scale) {
  const Work work{fold(source), source.data, destination, source.dtype, destination_dtype, scale};
  const bool copies = is_copy(source.dtype, destination_dtype, scale);
  cpu_stream(stream).run([work, copies] { copies ? copy(work) : convert<false>(work); });
}

}  // namespace fsdp::kernels::cpu

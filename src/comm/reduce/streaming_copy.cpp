#include "comm/reduce/streaming_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace fsdp {

#if defined(__SSE2__)

namespace {

constexpr int64_t kCacheLine = 64;

}  // namespace

void copy_streaming(void* to, const void* from, int64_t bytes) {
  if (to == from || bytes <= 0) return;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  // Streaming stores need aligned cache lines. The bytes before the first line and after the last
  // line are copied normally.
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kCacheLine);
  const int64_t head = std::min(bytes, (kCacheLine - misaligned) % kCacheLine);
  std::memcpy(out, in, head);
  const int64_t streamed_end = head + (bytes - head) / kCacheLine * kCacheLine;
  // The loop writes whole cache lines. The four stores of a line become one write, and the line is
  // not read.
  for (int64_t line = head; line < streamed_end; line += kCacheLine) {
    const auto* source = reinterpret_cast<const __m128i*>(in + line);
    auto* target = reinterpret_cast<__m128i*>(out + line);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(out + streamed_end, in + streamed_end, bytes - streamed_end);
}

// Streaming stores are weakly ordered. Without a fence a peer could pass the barrier before they
// are visible.
void finish_streaming() { _mm_sfence(); }

#else

void copy_streaming(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

void finish_streaming() {}

#endif

}  // namespace fsdp

#include "runtime/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Blocks of at least this size are separate mappings. So a freed block returns to the system at
// once, even while malloc keeps freed memory (base/heap.h).
constexpr int64_t kMapFrom = 256 * 1024;
// The size of two cache lines, which cores fetch as a pair. With this alignment, threads that write
// neighbouring blocks share no cache line.
constexpr int64_t kLinePair = 128;

[[noreturn]] void throw_out_of_memory(int64_t bytes) {
  throw DeviceError(
      {.what = fmt::format("out of host memory: cannot allocate {}", format_bytes(bytes)),
       .hint = "use more ranks, smaller units or a smaller batch"});
}

}  // namespace

Buffer allocate_host(int64_t bytes) {
  if (bytes == 0) return {};
  if (bytes >= kMapFrom) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw_out_of_memory(bytes);
    // An optimizer's update reads and writes the whole block, and takes 3 % less time with large
    // pages. On a system without large pages, madvise fails and has no effect.
    madvise(data, bytes, MADV_HUGEPAGE);
    return {data, bytes, [bytes](void* mapped) { munmap(mapped, bytes); }};
  }
  void* data = std::aligned_alloc(kLinePair, round_up(bytes, kLinePair));
  if (data == nullptr) throw_out_of_memory(bytes);
  std::memset(data, 0, bytes);
  return {data, bytes, [](void* block) { std::free(block); }};
}

}  // namespace fsdp

// Removes data from the processor's caches before a measurement.
#pragma once

#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace fsdp {

// [Note: caches of measurements] Before an operator of a step, other operators ran. So the level 2
// cache is filled with other data before an operator is measured on the CPU. A parameter in forward
// was last used in another step, between which the optimizer reads more memory than the caches
// have, so parameters are removed from all caches. A gather reads and writes memory that was last
// used long before; a reduction reads gradients that were written shortly before.
class Caches {
 public:
  void fill_last_level() { fill(last_level_, size_of_level(_SC_LEVEL3_CACHE_SIZE, 32 << 20)); }
  void fill_level_2() { fill(level_2_, size_of_level(_SC_LEVEL2_CACHE_SIZE, 1 << 20)); }
  // Removes memory from all caches. Only x86-64 has an instruction for it; elsewhere does nothing.
  static void flush([[maybe_unused]] const void* data, [[maybe_unused]] size_t bytes) {
#if defined(__x86_64__)
    const auto* const lines = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < bytes; i += kLine) _mm_clflush(lines + i);
    _mm_mfence();
#endif
  }

 private:
  using Bytes = std::vector<unsigned char>;

  static constexpr size_t kLine = 64;

  static size_t size_of_level(int name, size_t otherwise) {
    const long bytes = sysconf(name);  // 0 or -1 if it is unknown
    return bytes > 0 ? static_cast<size_t>(bytes) : otherwise;
  }
  static void fill(Bytes& bytes, size_t size) {
    bytes.resize(size);
    for (size_t i = 0; i < size; i += kLine) ++bytes[i];
  }

  Bytes level_2_, last_level_;
};

}  // namespace fsdp

#include "kernels/element/digest.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"

namespace fsdp::kernels::cpu {
namespace {

FSDP_TARGET_CLONES
uint64_t digest_of(const std::byte* data, int64_t words) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words; ++i) {
    uint64_t word;  // copied by memcpy, because the memory holds elements of another type
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof word), sizeof word);
    sum += digest_term(word, i);
  }
  return sum;
}

}  // namespace

// Uses no scratch: DigestRun::parts is only for devices on which several threads sum parts of a
// run.
void digest(Stream& stream, std::span<const DigestRun> runs) {
  run_over_table(stream, runs, [](std::span<const DigestRun> table) {
    for (const DigestRun& run : table) {
      *run.digest = digest_of(static_cast<const std::byte*>(run.data),
                              run.bytes / static_cast<int64_t>(sizeof(uint64_t)));
    }
  });
}

}  // namespace fsdp::kernels::cpu

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/run_over_table.h"
#include "kernels/cpu/target_clones.h"

namespace fsdp::kernels::cpu {
namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;

FSDP_TARGET_CLONES
uint64_t digest_of(const std::byte* data, int64_t words) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof word), sizeof word);
    uint64_t mixed = (word ^ (static_cast<uint64_t>(i + 1) * kFactor)) * kFactor;
    mixed = (mixed ^ (mixed >> 32)) * kFactor;  // else two signs that change could go unseen
    sum += mixed ^ (mixed >> 32);
  }
  return sum;
}

}  // namespace

void digest(Stream& stream, std::span<const DigestRun> runs) {
  run_over_table(stream, runs, [](std::span<const DigestRun> table) {
    for (const DigestRun& run : table) {
      *run.digest = digest_of(static_cast<const std::byte*>(run.data),
                              run.bytes / static_cast<int64_t>(sizeof(uint64_t)));
    }
  });
}

}  // namespace fsdp::kernels::cpu

#include "checkpoint/main_state_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/device.h"

namespace fsdp {
namespace {

// The number of elements that are staged at a time. They need 1 MiB of pinned memory, regardless of
// the parameter's size.
constexpr size_t kStagedNumel = 256 * 1024;

}  // namespace

MainStateWriter::MainStateWriter(const ShardContext& context)
    : stream_(context.main->stream()),
      piece_(context.streams.device.allocate(kStagedNumel * sizeof(float), MemoryKind::kPinned)) {}

void MainStateWriter::write(float* to, std::span<const float> values) const {
  while (!values.empty()) {
    const std::span<const float> staged = values.first(std::min(values.size(), kStagedNumel));
    std::memcpy(piece_.data(), staged.data(), staged.size_bytes());
    stream_.copy(to, piece_.data(), static_cast<int64_t>(staged.size_bytes()));
    stream_.synchronize();  // the next chunk overwrites the staged one
    to += staged.size();
    values = values.subspan(staged.size());
  }
}

}  // namespace fsdp

#include "checkpoint/main_state_writer.h"

#include <algorithm>
#include <cstring>

#include "runtime/device.h"

namespace fsdp {
namespace {

// The bytes that are staged at a time, in pinned memory.
constexpr size_t kPinnedBytes = 1 << 20;

}  // namespace

MainStateWriter::MainStateWriter(ShardContext& context)
    : stream_(context.main->stream()),
      piece_(context.streams.device.allocate(kPinnedBytes, MemoryKind::kPinned)) {
  context.hold.wait();
}

void MainStateWriter::write(Stream& stream, std::byte* to, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const std::span<const std::byte> staged = bytes.first(std::min(bytes.size(), kPinnedBytes));
    std::memcpy(piece_.data(), staged.data(), staged.size());
    stream.copy(to, piece_.data(), static_cast<int64_t>(staged.size()));
    stream.synchronize();  // the next memcpy overwrites the source of this copy
    to += staged.size();
    bytes = bytes.subspan(staged.size());
  }
}

}  // namespace fsdp

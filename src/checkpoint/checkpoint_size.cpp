#include "checkpoint/checkpoint_size.h"

#include <algorithm>
#include <string>

#include "checkpoint/publication.h"
#include "checkpoint/shard_cut.h"
#include "io/block_sums.h"

namespace fsdp {
namespace {

// Upper bounds of the bytes that are not tensors. A number has at most 20 characters.
//
// The manifest's values (options, rates, conditions, the program's own), and the last blocks of the
// manifest and the intervals, because a file takes whole blocks of 4 KiB.
constexpr int64_t kFixedBytes = (16 + 8) << 10;
// The padding of a shard's header, the last blocks of a shard and of its hashes, and a line in the
// manifest.
constexpr int64_t kRankBytes = 16 << 10;
// A line in the manifest and a number of updates, without the names.
constexpr int64_t kTensorBytes = 256;
constexpr int64_t kDimensionBytes = 2 * 24;  // a size and a stride
// An entry in a shard's header without the name, a first element in its metadata, and a row of the
// intervals. Each rank may write a share of each tensor.
constexpr int64_t kShareBytes = 176;

// Returns an upper bound of the bytes of a text in JSON, which writes some characters as \uNNNN.
int64_t json_bytes(const std::string& text) {
  constexpr int64_t kEscapeBytes = 5;
  return std::ssize(text) + kEscapeBytes * std::ranges::count_if(text, [](unsigned char c) {
                              return c < ' ' || c == '"' || c == '\\' || c == 0x7f;
                            });
}

}  // namespace

CheckpointSize checkpoint_size(const std::vector<StatePart>& parts, int64_t world_size) {
  CheckpointSize size{.tensor_bytes = checkpoint_bytes(parts)};
  int64_t rest = kFixedBytes + world_size * kRankBytes;
  for (const StatePart& part : parts) {
    size.rank_bytes += share_of(part).numel * bits_of(part.dtype) / 8;
    const int64_t name = json_bytes(part.name);
    rest += 2 * name + kTensorBytes + kDimensionBytes * std::ssize(part.shape);
    for (const std::string& other : part.other_names) rest += json_bytes(other) + 4;
    rest += world_size * (name + kShareBytes);
  }
  const int64_t blocks = (size.tensor_bytes + rest) / kBlockBytes;
  size.most_bytes = size.tensor_bytes + rest + blocks * int64_t{sizeof(Hash128)};
  return size;
}

}  // namespace fsdp

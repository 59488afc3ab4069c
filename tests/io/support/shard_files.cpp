#include "io/support/shard_files.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "io/safetensors_header.h"
#include "io/shard_writer.h"
#include "support/safetensors_bytes.h"

namespace fsdp {

SmallShard small_shard(int64_t last_bytes) {
  SmallShard content{.tensors = {{"weight/a", StoredDType::kF32, {257}},
                                 {"empty", StoredDType::kF32, {0}},
                                 {"steps", StoredDType::kI64, {3}},
                                 {"half", StoredDType::kBF16, {5}},
                                 {"random/cpu", StoredDType::kU8, {last_bytes}}}};
  int next = 1;
  for (const TensorSpec& tensor : content.tensors) {
    std::string bytes(static_cast<size_t>(count_elements(tensor.dtype, tensor.shape)->nbytes), ' ');
    for (char& byte : bytes) byte = static_cast<char>(next = next * 75 % 65537);
    content.bytes.push_back(std::move(bytes));
  }
  return content;
}

BlockSums write_shard(Disk& disk, const std::filesystem::path& path, const SmallShard& content,
                      size_t piece, const std::map<std::string, std::string>& metadata) {
  ShardWriter writer(disk, path, content.tensors, metadata);
  for (const size_t i : writer.order()) {
    const auto bytes = bytes_of(content.bytes[i]);
    for (size_t at = 0; at < bytes.size(); at += piece) {
      writer.append(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    }
  }
  return writer.finish();
}

Hash128 sum_of(const BlockSums& sums) { return hash_of(sums.to_bytes()); }

// The file is changed in place. To write all of it anew would let the file system sync it.
void flip_byte(const std::filesystem::path& path, int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

int64_t count_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

}  // namespace fsdp

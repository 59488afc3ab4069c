// Reads and writes model.safetensors.index.json and reads pytorch_model.bin.index.json. An index
// gives the shard file of each tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

struct SafetensorsIndex {
  std::map<std::string, std::string> file_of_tensor;
  std::optional<int64_t> total_bytes;  // metadata.total_size, if present
};

// Parses an index.
// Errors: IoError kCorruptData, which names the line and the byte. The same error if a file name
//   contains a path, because a path could lead out of the folder.
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file);
// Returns the names of the shards, in order. Errors: IoError kCorruptData if there is none.
std::set<std::string> shards_of(const SafetensorsIndex& index,
                                const std::filesystem::path& index_path);
// The names of the tensors in a shard.
struct ShardNames {
  std::string file;  // file name without a path
  std::vector<std::string_view> tensors;
};
// Compares the index with its shards, which are the files that the index names.
// Errors: IoError kCorruptData, which names a tensor that is not in the shard that the index gives
//   for it.
void check_shards(const SafetensorsIndex& index, const std::filesystem::path& index_path,
                  std::span<const ShardNames> shards);

// Returns the text of the index, in the format that Hugging Face transformers writes. Requires:
// names are UTF-8.
std::string format_safetensors_index(const SafetensorsIndex& index);

}  // namespace fsdp

// model.safetensors.index.json, and pytorch_model.bin.index.json: which shard file holds which
// tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

inline constexpr const char* kWeightsFile = "model.safetensors";
inline constexpr const char* kWeightsIndex = "model.safetensors.index.json";

struct SafetensorsIndex {
  std::map<std::string, std::string> file_of_tensor;
  std::optional<int64_t> total_bytes;  // what metadata.total_size says, if it says it
};

// Errors: IoError kCorruptData with the line and the byte, also for a file name that is more than
//         a plain name (a path could lead out of the folder).
SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file);
// The tensors that a shard holds.
struct ShardNames {
  std::string file;  // its plain name
  std::vector<std::string_view> tensors;
};
// Errors: IoError kCorruptData with the tensor that the index and the shards, which are those that
//         it names, do not have in the same file.
void check_shards(const SafetensorsIndex& index, const std::filesystem::path& index_path,
                  std::span<const ShardNames> shards);

// As transformers writes it. Requires: names are UTF-8.
std::string format_safetensors_index(const SafetensorsIndex& index);

}  // namespace fsdp

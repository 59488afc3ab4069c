// Writes the weights of a model folder as transformers' save_pretrained does: model.safetensors, or
// if that would be too large model-00001-of-00003.safetensors and so on, with their index.
//
//   fsdp::SafetensorsFolderWriter writer("out", {{"w", fsdp::StoredDType::kF32, {2, 3}}},
//                                        {.max_shard_bytes = 1 << 30});
//   writer.append("w", bytes);  // in pieces of any size, tensors in any order
//   writer.commit();            // only now does anything change in the folder
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

struct ShardOptions {
  // Limit of the tensors' bytes in one file; a larger tensor has its own file. All files are open
  // until commit().
  int64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // in every file
};

// A writer of a folder of weights. Whenever it dies, SafetensorsFolder opens the earlier set of
// weights or the new one, or refuses the folder, but never reads files of both. Without a commit
// the pieces are removed.
class SafetensorsFolderWriter {
 public:
  // Requires: the folder exists.
  // Effects: creates temporary files in it. Tensors fill the files in the given order.
  // Errors: IoError kCannotCreate, kIoError; InvalidArgument as SafetensorsWriter, and if
  //   max_shard_bytes is not positive.
  SafetensorsFolderWriter(std::filesystem::path folder, std::vector<TensorSpec> tensors,
                          ShardOptions options = {});
  ~SafetensorsFolderWriter();
  SafetensorsFolderWriter(SafetensorsFolderWriter&&) noexcept;
  SafetensorsFolderWriter& operator=(SafetensorsFolderWriter&&) noexcept;

  int file_count() const;  // without the index
  // Errors: as SafetensorsWriter::append.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // Writes all bytes to disk before the first rename, then renames the new files and removes the
  // remaining ones of an earlier set.
  // Errors: StateError that names tensors with missing bytes; IoError kCannotCreate, kIoError.
  //   After the first rename the folder may have no usable weights.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns true for model.safetensors, its index and its shards, which commit() may write or remove.
bool is_weights_name(std::string_view name);

}  // namespace fsdp

// Writes the weights of a model folder as transformers' save_pretrained does. The result is
// model.safetensors. If that file would be too large, the result is
// model-00001-of-00003.safetensors and so on, with an index.
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
  // The most bytes of tensors in one file. A tensor larger than this limit has its own file. All
  // files stay open until commit().
  int64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // in every file
};

// A writer of a folder of weights. Even if the writing process dies at any time, a later
// SafetensorsFolder opens either the earlier weights or the new weights, or throws. It never opens
// a mixture of both. Without a commit, the destructor removes the written data.
class SafetensorsFolderWriter {
 public:
  // Requires: the folder exists.
  // Effects: creates temporary files in the folder. Tensors are put into the files in the given
  //   order.
  // Errors: IoError kCannotCreate or kIoError. InvalidArgument in the cases of SafetensorsWriter,
  //   and if max_shard_bytes is not positive.
  SafetensorsFolderWriter(std::filesystem::path folder, std::vector<TensorSpec> tensors,
                          ShardOptions options = {});
  ~SafetensorsFolderWriter();
  SafetensorsFolderWriter(SafetensorsFolderWriter&&) noexcept;
  SafetensorsFolderWriter& operator=(SafetensorsFolderWriter&&) noexcept;

  int file_count() const;  // without the index
  // Errors: the same as those of SafetensorsWriter::append.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // Writes all bytes to disk before the first rename. Then renames the new files, and removes
  // files of an earlier set that were not replaced.
  // Errors: StateError if bytes of some tensors are missing (the error names these tensors).
  //   IoError kCannotCreate or kIoError. If an error occurs after the first rename, the folder may
  //   have no usable weights.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns true for the names of model.safetensors, its index and its shards. commit() may write or
// remove files with these names.
bool is_weights_name(std::string_view name);

}  // namespace fsdp

// Writes the weights of a model folder as transformers' save_pretrained does: model.safetensors, or
// where that would be too large model-00001-of-00003.safetensors and so on, with their index.
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
  // The tensors of a file take at most so many bytes together; one that takes more has a file of
  // its own. Files are open all at once until commit().
  int64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // of every file
};

// Whoever opens the folder with SafetensorsFolder sees the earlier set of weights, the new one, or
// is refused; never files of both, whenever the writer dies. Without a commit the pieces are
// removed.
class SafetensorsFolderWriter {
 public:
  // Effects: creates temporary files in the folder, which is there. Tensors fill files in the order
  //          given here.
  // Errors: IoError kCannotCreate, kIoError; InvalidArgument as SafetensorsWriter, and for
  //         max_shard_bytes that are not positive.
  SafetensorsFolderWriter(std::filesystem::path folder, std::vector<TensorSpec> tensors,
                          ShardOptions options = {});
  ~SafetensorsFolderWriter();
  SafetensorsFolderWriter(SafetensorsFolderWriter&&) noexcept;
  SafetensorsFolderWriter& operator=(SafetensorsFolderWriter&&) noexcept;

  int file_count() const;  // without the index
  // Errors: as SafetensorsWriter::append.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // All bytes are brought to disk before the first name changes; then the new files appear, and
  // what an earlier set had besides is removed.
  // Errors: StateError naming tensors whose bytes are missing; IoError kCannotCreate, kIoError.
  //         From the first name that changes on the folder may hold no usable weights.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// model.safetensors, its index, or one of its shards: the files that commit() may write or remove.
bool is_weights_name(std::string_view name);

}  // namespace fsdp

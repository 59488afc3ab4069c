// Writes the weights of a checkpoint as a Hugging Face folder.
#pragma once

#include <fsdp/safetensors.h>
#include <fsdp/safetensors_folder_writer.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

struct ExportOptions {
  std::string object = "model";           // the engine's name in the training state
  StoredDType dtype = StoredDType::kF32;  // of the parameters; F32, BF16 or F16
  int64_t max_shard_bytes = ShardOptions().max_shard_bytes;
};

struct ExportReport {
  int64_t tensors = 0;
  int64_t bytes = 0;  // of the tensors
  int files = 0;      // without the index
  std::vector<std::string> notes;
};

// Writes the parameters and buffers of an engine, in the order of the checkpoint, row-major. A tied
// parameter is written once, under its first name. Buffers keep their types. Of a buffer that
// differs between ranks, rank 0's values are written, and a note says so.
// Requires: `folder` is empty or does not exist; its parents are created.
// Effects: checks the blocks of the checkpoint as it reads them. After an error, removes everything
//   that it has written or created.
// Memory: as read_row_major, and the manifest and the headers of all shards.
// Errors: IoError kCorruptData if the checkpoint is damaged or a parameter is not finite.
//   InvalidArgument kUsage if there is no such engine, kConfiguration if a parameter is too large
//   for the dtype. IoError kCannotCreate, which names the folder. IoError kIoError if the disk is
//   full.
ExportReport export_weights(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace fsdp

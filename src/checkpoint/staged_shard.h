// StagedShard: one rank's file of a checkpoint, in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/shard_content.h"
#include "engine/engine_parts.h"
#include "runtime/buffer.h"

namespace fsdp {

// Returns the bytes of the staged file of this content.
int64_t staged_bytes(const ShardContent& content);

// A copy of the elements that this rank saves, in the format of its file. The memory is kept for
// the next checkpoint. It counts as MemoryCategory::kCheckpointStaging of the engine.
class StagedShard {
 public:
  // `engine` must outlive this object. If `file` is not empty, the memory is that of this file,
  // which the first call of reserve creates or opens. Its folder must exist then, in a file system
  // that keeps files in memory. The file may be renamed later.
  explicit StagedShard(EngineParts& engine, std::filesystem::path file = {})
      : engine_(engine), path_(std::move(file)) {}
  ~StagedShard();
  StagedShard(const StagedShard&) = delete;
  StagedShard& operator=(const StagedShard&) = delete;

  bool is_file() const { return !path_.empty(); }
  // Allocates the memory for `content`, unless it exists. Errors: those of EngineParts::add_memory
  // and Device::allocate; IoError kIoError or kCannotCreate if the memory is a file.
  void reserve(const ShardContent& content);
  // Issues the copies, and returns before those of main state are done. The engines' optimizers
  // wait for the copies before they change main state. Elements that other code may change are
  // copied first (StatePart::has_other_writers).
  // Requires: the file of the earlier content is not in use. Errors: those of reserve.
  void stage(const ShardContent& content);

  // ---- on any thread, after stage ----

  // Blocks until the copies are done. Errors: those of the device.
  void wait_for_copies() const;
  // Checks the elements that must be finite, and states the result in the file's metadata.
  // Requires: the copies are done.
  void check_values();
  std::span<const std::byte> file() const { return {memory_.at(0), file_bytes_}; }

 private:
  void set_start(bool finite);
  std::byte* place_of(size_t tensor) const { return memory_.at(offsets_[tensor]); }

  EngineParts& engine_;
  const std::filesystem::path path_;  // empty: no file
  Buffer memory_;
  // The staged content:
  std::vector<TensorSpec> specs_;
  std::map<std::string, std::string> metadata_;
  std::vector<int64_t> offsets_;  // by tensor, from the begin of the file
  std::vector<std::span<const float>> must_be_finite_;
  std::vector<Event> copied_;
  size_t file_bytes_ = 0;
};

}  // namespace fsdp

// CheckpointTensors: the tensors of a checkpoint, put together from the shards of all its ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "io/checked_shard.h"
#include "io/checkpoint_manifest.h"

namespace fsdp {

// Opens a shard when its first element is needed. The memory needed is the manifest, and the header
// of each opened shard. Not thread-safe.
class CheckpointTensors {
 public:
  // Reads the manifest. Errors: those of read_manifest.
  explicit CheckpointTensors(std::filesystem::path folder);

  const std::filesystem::path& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }

  // Consecutive elements of a tensor that are in one shard.
  struct Piece {
    CheckedShard& shard;
    const StoredTensor& stored;  // the shard's tensor
    int64_t from_bytes = 0;      // place of the first element in the shard's tensor
    int64_t to_bytes = 0;        // place of the first element in the visited elements
    int64_t bytes = 0;

    // Compares the blocks of the piece with their hashes. Errors: those of CheckedShard::check.
    void check() const { shard.check(stored, from_bytes, from_bytes + bytes); }
    // Calls `take` with the bytes. Then releases their pages.
    void read(const std::function<void(std::span<const std::byte> bytes)>& take) const;
  };
  // Calls `visit` for each piece of the elements [begin, begin + numel) of
  // manifest().tensors[index], in the tensor's memory order. Does not check the blocks.
  // Errors: IoError kCorruptData if a shard is damaged or lacks the elements; kIoError if it cannot
  //   be read.
  void visit(int64_t index, int64_t begin, int64_t numel,
             const std::function<void(const Piece& piece)>& visit);
  // Copies the elements from `begin` on, as many as fill `to`, after it has checked their blocks.
  // Errors: those of visit() and Piece::check.
  void read(int64_t index, int64_t begin, std::span<std::byte> to);

 private:
  CheckedShard& open(int64_t file);

  const std::filesystem::path folder_;
  const CheckpointManifest manifest_;
  std::map<int64_t, std::unique_ptr<CheckedShard>> shards_;  // by their place in manifest_.files
};

}  // namespace fsdp

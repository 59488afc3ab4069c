// Writes the small checkpoints of tests, as the ranks of a training would.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/checkpoint_manifest.h"

namespace fsdp {

// Returns the bytes of the elements.
template <class Element>
std::string elements(const std::vector<Element>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Element)};
}

// A checkpoint in memory.
struct WholeCheckpoint {
  CheckpointManifest manifest;
  std::vector<std::string> bytes;  // by tensor, of all its elements in memory order

  // Adds a tensor. Without strides it is row-major.
  void add(std::string name, StoredDType dtype, std::vector<int64_t> shape, std::string values,
           std::vector<int64_t> strides = {});
};

// Cuts every tensor into equal intervals for this many ranks, and names their shards. The last
// ranks get no element of a tensor that has fewer granules than ranks.
void cut_evenly(CheckpointManifest& manifest, int64_t ranks);
// Gives every tensor to rank 0. The shards of the other ranks are empty.
void give_to_first(CheckpointManifest& manifest, int64_t ranks);

// Writes the shards that the manifest describes, and the manifest. The folder must not exist.
void write_checkpoint(const std::filesystem::path& folder, WholeCheckpoint checkpoint);

}  // namespace fsdp

// ShardContent: the tensors that one rank writes into its file of a checkpoint.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/shard_cut.h"
#include "checkpoint/state_part.h"
#include "io/disk.h"

namespace fsdp {

// The metadata of a shard file that contain the index of each tensor's first element: "0,512,…".
// The tensors are in the order of their names.
inline constexpr std::string_view kBegins = "begins";
// The metadata of a staged shard (staged_shard.h) that say if its values are finite: "1" or "0".
inline constexpr std::string_view kFinite = "finite";

// Returns the name of a rank's file: "shard-00001-of-00004.safetensors".
std::string shard_name(int64_t rank, int64_t world_size);

// This rank's share of one tensor.
struct ShardTensor {
  const StatePart* part;
  ElementRange range;

  int64_t bytes() const { return range.numel * bits_of(part->dtype) / 8; }
  const std::byte* data() const {
    return part->data + (range.begin - part->begin) * bits_of(part->dtype) / 8;
  }
  bool must_be_finite() const { return part->must_be_finite && part->dtype == StoredDType::kF32; }
};

struct ShardContent {
  // `parts` must outlive this object. Parts of which this rank writes nothing are left out.
  explicit ShardContent(const std::vector<StatePart>& parts);

  int64_t bytes() const;

  std::vector<ShardTensor> tensors;
  std::vector<TensorSpec> specs;  // by tensor
  std::map<std::string, std::string> metadata;
};

// Writes the content to the file `path`. Returns true if all elements that must be finite are.
// Errors: those of ShardWriter.
bool write_shard(Disk& disk, const std::filesystem::path& path, const ShardContent& content);

// Returns true if no value is an infinity or a NaN.
bool are_finite(std::span<const float> values);

}  // namespace fsdp

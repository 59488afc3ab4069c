// CheckpointManifest: the file manifest.json of a checkpoint. It is written last and names
// everything else.
//
//   step-00001200/
//     shard-00000-of-00002.safetensors   the elements that rank 0 wrote
//     shard-00000-of-00002.sum           hashes of its blocks (block_sums.h)
//     intervals.safetensors              which elements of which tensor a shard has
//     manifest.json
//
// A shard stores its elements of each tensor under the tensor's own name, as a tensor of one
// dimension.
#pragma once

#include <fsdp/safetensors.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/block_sums.h"

namespace fsdp {

// A tensor of the whole training. Its elements are numbered in the memory order that `strides`
// define.
struct ManifestTensor {
  std::string name;  // "model/weight/layers.0.mix.weight"
  // Other names of a tied parameter, in the form of `name`. No name occurs twice in a manifest.
  std::vector<std::string> other_names;
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t granule = 1;  // number of consecutive elements that no interval cuts apart
  bool operator==(const ManifestTensor&) const = default;

  int64_t numel() const;
};

// Elements [begin, begin + numel) of tensor `tensor` are in file `file`.
struct ManifestInterval {
  int64_t tensor = 0;
  int64_t file = 0;
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const ManifestInterval&) const = default;
};

struct ManifestFile {
  std::string name;  // "shard-00000-of-00002.safetensors"
  int64_t bytes = 0;
  Hash128 sum;  // of the file's `.sum` file; of the file itself if it has none (intervals)
  bool operator==(const ManifestFile&) const = default;
};

// A value that is equal on all ranks. Numbers are stored as text, a double in hexadecimal, so every
// bit is kept.
using ManifestValue = std::variant<int64_t, double, std::string>;

// An object of the training state (an optimizer, a scheduler, …) and its values.
struct ManifestObject {
  std::string name;  // "optimizer"
  std::string kind;  // "AdamW", "CosineAnnealingLR", "LossScaler", …
  std::map<std::string, ManifestValue> values;
  bool operator==(const ManifestObject&) const = default;
};

struct CheckpointManifest {
  std::string run;            // id of the run, 32 hexadecimal digits; kept when the run resumes
  int64_t sequence = 0;       // number of this checkpoint in its run, from 1
  int64_t step = 0;           // optimizer steps that the training had done
  int64_t resumed_from = -1;  // step of the checkpoint from which the process resumed; -1: none
  std::string time;           // UTC, "2026-11-26T23:20:00Z"
  bool finite = true;         // false: a weight or a value of the optimizers is not finite
  int64_t world_size = 1;
  // Conditions that may change the bits of a resumed run, by name: "strategy", "mesh",
  // "param_dtype", "libtorch", "threads per rank", "cpu capability", "build".
  std::map<std::string, std::string> conditions;
  std::vector<ManifestObject> objects;
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestFile> files;  // the shards, by rank; last intervals.safetensors
  // The intervals of all tensors in all shards, sorted by tensor and begin. They are stored in
  // intervals.safetensors.
  std::vector<ManifestInterval> intervals;
  bool operator==(const CheckpointManifest&) const = default;
};

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIntervalsName = "intervals.safetensors";
inline constexpr int kManifestVersion = 1;

// Returns the bytes of intervals.safetensors: one I64 tensor "intervals" of shape [n, 4].
// Errors: InvalidArgument if the file would exceed 100 MB.
std::vector<std::byte> intervals_file(const std::vector<ManifestInterval>& intervals);
// Reads the bytes of intervals.safetensors. Checks only the form of the file.
// Errors: IoError kCorruptData that names `path`.
std::vector<ManifestInterval> parse_intervals(std::span<const std::byte> bytes,
                                              const std::filesystem::path& path);
// Returns the text of manifest.json, without the intervals. Its last member is the hash of all
// bytes before that member.
// Errors: InvalidArgument for a manifest or intervals that read_manifest would refuse.
std::string manifest_text(const CheckpointManifest& manifest);

// Reads a checkpoint's manifest and intervals, and checks everything that needs no tensor: the
// hashes of both, each member's presence, type and range, and that the intervals of every tensor
// cover each element exactly once and cut no granule. Unknown members are refused.
// Errors: IoError kIoError if a file cannot be read. IoError kCorruptData if a file is missing, is
//   a link or breaks a rule of manifest_rules.h. The error names the file and the fault; among
//   others: "'model/weight/a' has elements [0, 512) twice", "… lacks elements …". Files of at most
//   100 MB are read; memory is bounded by their size plus 16 MiB.
CheckpointManifest read_manifest(const std::filesystem::path& folder);

}  // namespace fsdp

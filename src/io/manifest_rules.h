// Rules that each manifest of a checkpoint keeps. The writer and the reader check the same rules,
// so nothing is written that cannot be read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint_manifest.h"

namespace fsdp {

// Limits of a manifest. With them, a reader needs at most the size of the text plus 16 MiB.
inline constexpr int64_t kMaxManifestBytes = 100'000'000;  // also of intervals.safetensors
inline constexpr int64_t kMaxManifestTensors = 1 << 17;
inline constexpr int64_t kMaxManifestDimensions = 1 << 19;  // of all tensors together
// Limit for objects, their values, conditions, files and other names of tensors together.
inline constexpr int64_t kMaxManifestEntries = 1 << 14;

// Limit for the bytes of each text, including its quotes and escapes.
inline constexpr int64_t kMaxManifestTextBytes = 2 << 20;

// Returns the first fault of the manifest without its intervals, or an empty text.
std::string fault_of(const CheckpointManifest& manifest);
// Returns the first fault of the intervals, or an empty text. Requires: fault_of(manifest) is
// empty.
std::string fault_of_intervals(const CheckpointManifest& manifest,
                               std::span<const ManifestInterval> intervals);

}  // namespace fsdp

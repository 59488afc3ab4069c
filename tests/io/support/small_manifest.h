// Makes the small manifests of tests.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/checkpoint_manifest.h"

namespace fsdp {

// Returns a manifest with every kind of value: two tensors of two shards, one of them tied.
CheckpointManifest small_manifest();
// Sets the last file to what intervals_file(manifest.intervals) has.
void set_intervals_entry(CheckpointManifest& manifest);
// Returns `body` with the hash that a manifest ends with.
std::string with_hash(std::string_view body);
// Returns what stands before the hash.
std::string body_of(const std::string& text);
// Returns the text with the first `from` replaced. Requires: there is one.
std::string replaced(std::string text, std::string_view from, std::string_view to);
void write_manifest(const std::filesystem::path& folder, const CheckpointManifest& manifest);

}  // namespace fsdp

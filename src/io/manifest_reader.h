// Reads the text of manifest.json.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/checkpoint_manifest.h"

namespace fsdp {

// A manifest ends with kManifestHashBegin, the hash of all bytes before kManifestHashBegin, and
// kManifestHashEnd.
inline constexpr std::string_view kManifestHashBegin = "\"hash\": \"";
inline constexpr std::string_view kManifestHashEnd = "\"\n}\n";
// Returns the last member and the end of a manifest that begins with `body`.
std::string manifest_end(std::string_view body);

// Returns the manifest without intervals. Checks its hash, each member's presence and type, and the
// rules of manifest_rules.h. `path` is used only for messages.
// Errors: IoError kCorruptData.
CheckpointManifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace fsdp

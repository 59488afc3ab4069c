// Reads the values of an object of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint_manifest.h"

namespace fsdp {

// Throws IoError kCorruptData about an object of the checkpoint. The message consists of the
// object's name and `what`.
[[noreturn]] void refuse_object(const ManifestObject& object, std::string what, std::string hint);

// Return the value `name` of an object of the checkpoint. Errors: IoError kCorruptData if the
// object has no value of this name and type.
int64_t int64_of(const ManifestObject& object, std::string_view name);
double double_of(const ManifestObject& object, std::string_view name);
const std::string& text_of(const ManifestObject& object, std::string_view name);

// Returns the moments that the checkpoint has of each parameter for the optimizer `name`: the
// tensors NAME/MOMENT/FQN, by FQN.
std::map<std::string, std::vector<std::string>, std::less<>> moments_in(
    const CheckpointManifest& manifest, std::string_view name);

// Stores a count for each of several names. The count that most of them have is stored once,
// because a model may have more parameters than a manifest has room for values.
void add_counts(const std::map<std::string, int64_t>& counts,
                std::map<std::string, ManifestValue>& to);
// Returns the count of a name. Errors: IoError kCorruptData if it is missing or negative.
int64_t count_of(const ManifestObject& object, const std::string& name);

}  // namespace fsdp

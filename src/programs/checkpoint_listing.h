// Formats checkpoints for people.
#pragma once

#include <filesystem>
#include <string>

#include "io/checkpoint_manifest.h"
#include "io/found_checkpoints.h"

namespace fsdp {

// Returns one line for each checkpoint, newest first, with aligned columns for step, sequence,
// time, ranks, strategy, size on disk and state. If there are several runs, a line with its id
// precedes the checkpoints of each run. Reads the sizes of the files, but not their content.
std::string format_checkpoints(const FoundCheckpoints& found);

// Returns the step, the run, the conditions, the objects with their values, the files and the
// tensors. With `summary`, totals replace the lists of files and tensors.
std::string format_manifest(const CheckpointManifest& manifest, bool summary);

// Returns a value of an object: "0.001", or a text in quotes.
std::string text_of(const ManifestValue& value);

}  // namespace fsdp

// Compares two checkpoints.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace fsdp {

// Compares the step, the objects with their values, and the tensors of two checkpoints bit by bit,
// however their ranks have sharded them. The order of ranks, the run, the time and the conditions
// are not compared. Of the states of random generators only those of ranks that both have are
// compared. Passes one line to `say` for each difference. Unless `all`, only the first tensor whose
// values differ is a line, and the tensors after it are not compared. Returns true if there is no
// difference.
// Memory: the manifests, the headers of all shards, and a few blocks of 4 MiB.
// Errors: IoError kCorruptData if a checkpoint is damaged; kIoError if it cannot be read.
bool compare_checkpoints(const std::filesystem::path& first, const std::filesystem::path& second,
                         bool all, const std::function<void(const std::string& line)>& say);

}  // namespace fsdp

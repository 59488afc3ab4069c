// Small files that appear under their name complete and on disk, or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Writes a small file (configuration, vocabulary, metrics): first to a temporary file beside
// `path`, which is then renamed. After a failure `path` is unchanged.
// Errors: IoError kCannotCreate if the folder is missing or read-only, or if `path` is a folder;
//   kIoError if the disk is full or fails.
void write_file(const std::filesystem::path& path, std::string_view content);

// Checks that write_file(path) can begin: creates the temporary file and removes it.
// Errors: as write_file, except for a full disk.
void try_to_write(const std::filesystem::path& path);

// Removes temporary files for folder/NAME whose writers died, for each NAME that `is_ours` accepts,
// and returns these names. Files of living writers stay, also those of other processes. Never
// throws: a file that cannot be removed, or whose writer may live, stays.
std::vector<std::string> remove_leftovers(
    const std::filesystem::path& folder, const std::function<bool(std::string_view name)>& is_ours);

}  // namespace fsdp

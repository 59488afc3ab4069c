// Small files that appear under their name complete and on disk, or not at all.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Writes a configuration, a vocabulary or metrics: to a temporary file beside `path`, which is then
// renamed. After a failure `path` keeps what it had.
// Errors: IoError kCannotCreate if the folder is missing or read-only or `path` is a folder;
//         kIoError if the disk is full or fails.
void write_file(const std::filesystem::path& path, std::string_view content);

// Returns if write_file of `path` could begin: the temporary file is made and removed again.
// Errors: as those of write_file, but for a full disk.
void try_to_write(const std::filesystem::path& path);

// Removes the temporary files of writers of folder/NAME that died, for each NAME that `is_ours`;
// returns their names. A living writer's stays, also another process's. Never throws: what cannot
// be removed, or be known to be a dead one's, stays.
std::vector<std::string> remove_leftovers(
    const std::filesystem::path& folder, const std::function<bool(std::string_view name)>& is_ours);

}  // namespace fsdp

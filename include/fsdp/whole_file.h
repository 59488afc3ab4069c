// Reads and writes small files. A written file appears under its name only when it is complete and
// on disk.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// Returns the content of the file.
// Errors: IoError kIoError if the file is missing, unreadable, or not a regular file.
std::string read_file(const std::filesystem::path& path);

// Throws the errors of read_file if the file cannot be opened. Does not read it.
void require_readable(const std::filesystem::path& path);

// Writes a small file (configuration, vocabulary, metrics). This function writes a temporary file
// beside `path` and then renames the temporary file. After a failure `path` is unchanged.
// Errors: IoError kCannotCreate if the folder is missing or read-only, or if `path` is a folder.
//   IoError kIoError if the disk is full or fails.
void write_file(const std::filesystem::path& path, std::string_view content);

// Checks that write_file(path) can begin, by creating the temporary file and removing it.
// Errors: those of write_file, but a full disk is not detected.
void try_to_write(const std::filesystem::path& path);

// Removes the temporary files that dead processes left for folder/NAME, for each NAME that
// `is_ours` accepts. Returns these names. A temporary file whose writer still runs, in any process,
// is not removed. Never throws: a file is left in place if it cannot be removed or its writer may
// still be alive.
std::vector<std::string> remove_leftovers(
    const std::filesystem::path& folder, const std::function<bool(std::string_view name)>& is_ours);

}  // namespace fsdp

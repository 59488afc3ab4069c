// Files that are read as a whole.
#pragma once

#include <filesystem>
#include <string>

namespace bert_qa {

// Returns what the file holds.
// Errors: fsdp::IoError kIoError if it is missing, unreadable, or not a regular file.
std::string read_text(const std::filesystem::path& path);

// Throws as read_text does if the file cannot be opened, and reads nothing.
void require_readable(const std::filesystem::path& path);

}  // namespace bert_qa

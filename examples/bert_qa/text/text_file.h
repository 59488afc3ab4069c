// Reads whole files.
#pragma once

#include <filesystem>
#include <string>

namespace bert_qa {

// Returns the content of the file.
// Errors: fsdp::IoError kIoError if it is missing, unreadable, or not a regular file.
std::string read_text(const std::filesystem::path& path);

// Throws as read_text if the file cannot be opened. Reads nothing.
void require_readable(const std::filesystem::path& path);

}  // namespace bert_qa

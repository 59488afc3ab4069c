// Reads whole files.
#pragma once

#include <filesystem>
#include <string>

namespace bert_qa {

// Returns the content of the file.
// Errors: fsdp::IoError kIoError if it is missing, unreadable, or not a regular file.
std::string read_text(const std::filesystem::path& path);

// Throws the errors of read_text if the file cannot be opened. Does not read it.
void require_readable(const std::filesystem::path& path);

}  // namespace bert_qa

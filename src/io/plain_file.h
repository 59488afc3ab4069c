// Checks that a name or a file cannot lead out of its folder.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/mapped_file.h"

namespace fsdp {

// Returns true for a file name that cannot lead out of the folder, on any system: letters, digits,
// '.', '_' and '-', but neither "." nor "..".
bool is_plain_name(std::string_view name);

// Maps a file of a checkpoint.
// Errors: IoError kCorruptData if the file is missing, or if it is a link, a folder or not a
//   regular file. IoError kIoError if it cannot be read.
MappedFile map_plain_file(const std::filesystem::path& path);

}  // namespace fsdp

// Words failures of system calls on files, so that all writers report them alike.
#pragma once

#include <filesystem>
#include <string>

#include "fsdp/error.h"

namespace fsdp {

// Returns the system's reason for `error`, a value of errno.
std::string system_cause(int error);
// Throws IoError with the system's reason and a hint.
[[noreturn]] void fail_file(ExitCode code, std::string what, std::string where, int error);
// Throws IoError for a file that cannot be created: kIoError if the disk is full or fails, else
// kCannotCreate (missing folder, no permission, …).
[[noreturn]] void cannot_create(const std::filesystem::path& path, int error,
                                std::string what = "cannot create the file");

}  // namespace fsdp

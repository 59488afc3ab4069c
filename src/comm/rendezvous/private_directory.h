// A directory that only this user can enter, where the ranks of a job find each other.
#pragma once

#include <string>

#include "comm/descriptor.h"

namespace fsdp {

// The path for `key`: under `runtime_dir` if that is an absolute path, else under /tmp.
std::string private_directory_path(const std::string& runtime_dir, const std::string& key);

// Makes the directory with mode 0700, or checks that what is there is a directory of this user with
// that mode. Errors: InvalidArgument (78) if it is anything else.
void make_private_directory(const std::string& path);
// False if nothing is there yet. Errors: as above.
bool check_private_directory(const std::string& path);

// An exclusive lock on PATH/lock, held while the descriptor lives. Empty if another process has it.
// The lock of a process that died is free.
Descriptor lock_private_directory(const std::string& path);

// Removes the directory with the lock and `file` in it. Never throws.
void remove_private_directory(const std::string& path, const std::string& file) noexcept;

// Removes this user's directories beside `path` that runs left which were killed while their ranks
// could still meet: those whose lock is free and that nobody touched for a minute. Never throws.
void remove_abandoned_directories(const std::string& path, const std::string& file) noexcept;

}  // namespace fsdp

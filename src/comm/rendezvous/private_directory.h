// A directory that only this user can enter, where the ranks of a job find each other.
#pragma once

#include <string>

#include "comm/descriptor.h"

namespace fsdp {

// Returns the path for `key`: under `runtime_dir` if that is an absolute path of less than 60
// characters, else under /tmp.
std::string private_directory_path(const std::string& runtime_dir, const std::string& key);

// Makes the directory with mode 0700, or checks that an existing one is a directory of this user
// with that mode. Errors: InvalidArgument (78) if it is anything else.
void make_private_directory(const std::string& path);
// Checks an existing directory; returns false if there is none yet. Errors: as above.
bool check_private_directory(const std::string& path);

// Makes the directory and locks PATH/lock, while the descriptor lives. Empty if another process has
// the lock. The lock of a process that died is free.
Descriptor lock_private_directory(const std::string& path);

// Removes the directory with the lock and `file` in it. Never throws.
void remove_private_directory(const std::string& path, const std::string& file) noexcept;

// Removes this user's directories beside `path` that runs left because they were killed while their
// ranks met: those whose lock is free and that were not touched for a minute. Never throws.
void remove_abandoned_directories(const std::string& path, const std::string& file) noexcept;

}  // namespace fsdp

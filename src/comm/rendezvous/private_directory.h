// A directory that only this user can enter. The ranks of a job find each other there.
#pragma once

#include <string>

#include "base/descriptor.h"

namespace fsdp {

// Returns the path for `key`. It is under `runtime_dir` if that is an absolute path of less than 60
// characters, otherwise under /tmp.
std::string private_directory_path(const std::string& runtime_dir, const std::string& key);

// Makes the directory with mode 0700. If the path exists, checks that it is a directory of this
// user with that mode. Errors: InvalidArgument (78) if it is not.
void make_private_directory(const std::string& path);
// Checks an existing directory. Returns false if the path does not exist. Errors: those of
// make_private_directory.
bool check_private_directory(const std::string& path);

// Makes the directory and locks PATH/lock. The lock is held while the returned descriptor exists.
// Empty if another process holds the lock. When a process dies, its lock is released.
Descriptor lock_private_directory(const std::string& path);

// Removes the directory with its lock and with `file`. Never throws.
void remove_private_directory(const std::string& path, const std::string& file) noexcept;

// Removes directories of this user next to `path` that earlier jobs left because they were killed
// during the rendezvous. These are directories whose lock is free and that were not touched for a
// minute. Never throws.
void remove_abandoned_directories(const std::string& path, const std::string& file) noexcept;

}  // namespace fsdp

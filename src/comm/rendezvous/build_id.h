// The identity of a program's build.
#pragma once

#include <string>

namespace fsdp {

// Returns the running program's linker build id in hexadecimal, or a hash of its file if it was
// linked without one. Errors: IoError if that file cannot be read.
std::string build_id();

}  // namespace fsdp

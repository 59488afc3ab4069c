// The identity of a program's build.
#pragma once

#include <string>

namespace fsdp {

// Returns the running program's linker build id in hexadecimal, or a hash of the program's file if
// the program was linked without a build id. Errors: IoError if that file cannot be read.
std::string build_id();

}  // namespace fsdp

// What tells one build of a program from another.
#pragma once

#include <string>

namespace fsdp {

// The running program's linker build id in hexadecimal; a hash of its file if it was linked without
// one. Errors: IoError if that file cannot be read.
std::string build_id();

}  // namespace fsdp

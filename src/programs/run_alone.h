// Implements main() of a program that runs as one process without a mesh.
#pragma once

#include <unistd.h>

#include <exception>

#include "base/standard_streams.h"
#include "fsdp/error.h"

namespace fsdp {

// Runs `body` and returns the exit code. If `body` throws, prints the error line and returns the
// exit code of the exception. Otherwise returns 0.
template <class Body>
int run_alone(const Body& body) {
  open_standard_streams();
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const ErrorPlace place{.rank = 0, .world_size = 1, .host = host, .step = -1};
    write_error_line(error_line(error, place));
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace fsdp

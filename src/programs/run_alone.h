// main() of a program that is one process and has no mesh.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <exception>

#include "fsdp/error.h"

namespace fsdp {

// The exit code: 0, or that of what `body` throws, whose line is printed.
template <class Body>
int run_alone(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const ErrorPlace place{.rank = 0, .world_size = 1, .host = host, .step = -1};
    std::fputs((error_line(error, place) + "\n").c_str(), stderr);
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace fsdp

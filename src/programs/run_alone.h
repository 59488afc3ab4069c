// Implements main() of a program that runs as one process without a mesh.
#pragma once

#include <unistd.h>

#include <csignal>
#include <exception>
#include <type_traits>

#include "base/cpu_features.h"
#include "base/standard_streams.h"
#include "fsdp/error.h"

namespace fsdp {

// Runs `body` and returns the exit code. If `body` throws, prints the error line and returns the
// exit code of the exception. Otherwise returns the body's result, or 0 if it has none.
template <class Body>
int run_alone(const Body& body) {
  open_standard_streams();
  leave_hidden_amx_alone();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the file size limit then fails like a full disk
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return 0;
    } else {
      return body();
    }
  } catch (const std::exception& error) {
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    const ErrorPlace place{.rank = 0, .world_size = 1, .host = host, .step = -1};
    write_error_line(error_line(error, place));
    return static_cast<int>(exit_code_of(error));
  }
}

}  // namespace fsdp

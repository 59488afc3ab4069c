// Writes to standard output and reports a failure, for example a full disk.
#pragma once

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>
#include <system_error>

#include "fsdp/error.h"

namespace fsdp {

[[noreturn]] inline void cannot_write_output(std::string_view output) {
  throw IoError(ExitCode::kIoError, {.what = "cannot write the " + std::string(output),
                                     .where = "standard output",
                                     .cause = std::generic_category().message(errno)});
}

// Writes the text to the buffer of stdout. An error calls it `output`. Errors: IoError kIoError.
inline void print(std::string_view text, std::string_view output = "listing") {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) cannot_write_output(output);
}

// Writes the text that is still in the buffer. Errors: as print().
inline void flush_output(std::string_view output = "listing") {
  if (std::fflush(stdout) != 0) cannot_write_output(output);
}

// Writes the whole output of a program. Errors: as print().
inline void print_all(std::string_view output, std::string_view text) {
  print(text, output);
  flush_output(output);
}

}  // namespace fsdp

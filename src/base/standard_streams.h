// The three standard streams, as a program finds them: any may be closed, full, or a pipe that
// nobody reads.
#pragma once

#include <string_view>

namespace fsdp {

// Opens those of the descriptors 0 to 2 that are closed on /dev/null: the next file would get their
// numbers otherwise, and what is meant for stderr would be written into it. Call it before anything
// is opened.
void open_standard_streams();

// Writes `line` and a line break to stderr. Where that is closed or full the line is lost, and
// nothing else: an exit code does not depend on it.
void write_error_line(std::string_view line) noexcept;

}  // namespace fsdp

// The three standard streams, as a program finds them: any may be closed, full, or a pipe that
// nobody reads.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Opens those of the descriptors 0 to 2 that are closed on /dev/null: the next file would get their
// numbers otherwise, and what is meant for stderr would be written into it. Call it before anything
// is opened.
void open_standard_streams();

// Returns what moves a terminal's cursor to the start of a row, and not off a row that is empty:
// text before a line that must begin in the first column, whatever stands there (a status line that
// is redrawn, the echo of Ctrl-C). Empty if `stream` is no terminal.
std::string fresh_row(int stream);

// Writes `line` and a line break to stderr, on a terminal in a row of its own. Where stderr is
// closed or full the line is lost, and nothing else: an exit code does not depend on it.
void write_error_line(std::string_view line) noexcept;

}  // namespace fsdp

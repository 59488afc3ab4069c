// The three standard streams in any state: closed, full, or a pipe without a reader.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Opens /dev/null as those of the descriptors 0 to 2 that are closed. Otherwise the next file would
// get such a number, and text for stderr would be written into it. Call it before anything is
// opened.
void open_standard_streams();

// Returns text that moves a terminal's cursor to the start of a row, but not off an empty row. For
// a line that must begin in the first column after any text (a status line that is redrawn, the
// echo of Ctrl-C). Empty if `stream` is no terminal.
std::string fresh_row(int stream);

// Writes `line` and a line break to stderr, on a terminal in a row of its own. If stderr is closed
// or full, the line is lost, and nothing else: an exit code does not depend on it.
void write_error_line(std::string_view line) noexcept;

}  // namespace fsdp

// Handles the three standard streams in any state: closed, full, or a pipe without a reader.
#pragma once

#include <string>
#include <string_view>

namespace fsdp {

// Opens /dev/null for each closed descriptor from 0 to 2. Without this, the next file that is
// opened would get the closed descriptor, and text for stderr would be written into this file. Call
// this function before any file is opened.
void open_standard_streams();

// Returns text that moves a terminal's cursor to the start of an empty row. If the row is already
// empty, the cursor stays there. Print this text before a line that must begin in the first column.
// The current row may contain other text, such as a status line or the echo of Ctrl-C. Returns an
// empty string if `stream` is not a terminal.
std::string fresh_row(int stream);

// Writes `line` and a line break to stderr. On a terminal the line begins in a new row. If stderr
// is closed or full, the line is lost without an error, because an exit code must not depend on it.
void write_error_line(std::string_view line) noexcept;

}  // namespace fsdp

#include "base/standard_streams.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

namespace fsdp {

void open_standard_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is `stream`, because all lower descriptors
    // are open.
    [[maybe_unused]] const int opened =
        open("/dev/null", stream == STDIN_FILENO ? O_RDONLY : O_WRONLY);
  }
}

std::string fresh_row(int stream) {
  if (isatty(stream) != 1) return {};
  winsize size{};
  if (ioctl(stream, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return "\n";
  // If the cursor is not in the first column, a full row of spaces moves it to the next row. If the
  // cursor is in the first column, it stays in this row, because a terminal moves to the next row
  // only when another character does not fit.
  return std::string(size.ws_col, ' ') + "\r\x1b[K";
}

void write_error_line(std::string_view line) noexcept {
  try {
    // The text is written by one system call, so that lines of several processes do not mix.
    const std::string whole = fresh_row(STDERR_FILENO) + std::string(line) + '\n';
    [[maybe_unused]] const size_t written = std::fwrite(whole.data(), 1, whole.size(), stderr);
  } catch (...) {  // no memory for `whole`: print the line alone
    [[maybe_unused]] const size_t written = std::fwrite(line.data(), 1, line.size(), stderr);
  }
}

}  // namespace fsdp

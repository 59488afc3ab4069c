// A pseudo terminal. The test reads what a program writes to it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::testing {

class PseudoTerminal {
 public:
  explicit PseudoTerminal(int columns = 80) : master_(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) {
      throw std::runtime_error("posix_openpt");
    }
    slave_ = open(name().c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    set_columns(columns);
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;
  ~PseudoTerminal() {
    close(slave_);
    close(master_);
  }

  std::string name() const { return ptsname(master_); }
  // Returns the end to which a program under test writes.
  int slave() const { return slave_; }
  void set_columns(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ioctl(slave_, TIOCSWINSZ, &size);
  }
  // Returns the text that was written until `at_most_ms` pass without output. Lines end in \r\n.
  std::string read_all(int at_most_ms = 0) const {
    std::string text;
    pollfd readable{.fd = master_, .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, at_most_ms) == 1) {
      std::array<char, 4096> block{};
      const ssize_t got = ::read(master_, block.data(), block.size());
      if (got <= 0) break;
      text.append(block.data(), got);
    }
    return text;
  }

 private:
  int master_, slave_ = -1;
};

// Returns the rows that a terminal with `columns` columns shows for `text`, without trailing
// spaces.
inline std::vector<std::string> rows_of(std::string_view text, size_t columns) {
  std::vector<std::string> rows(1);
  size_t column = 0;  // `columns`: the next letter starts a row
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& row = rows.back();
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      rows.emplace_back();
    } else if (text.substr(i).starts_with("\x1b[K")) {
      row.resize(std::min(row.size(), column));
      i += 2;
    } else if (column == columns) {
      rows.emplace_back(1, text[i]);
      column = 1;
    } else {
      row.resize(std::max(row.size(), column + 1), ' ');
      row[column++] = text[i];
    }
  }
  for (std::string& row : rows) row.resize(row.find_last_not_of(' ') + 1);
  return rows;
}

}  // namespace fsdp::testing

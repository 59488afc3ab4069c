// A terminal of which the test is the other side.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>

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
  // For who writes to it.
  int slave() const { return slave_; }
  void set_columns(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ioctl(slave_, TIOCSWINSZ, &size);
  }
  // What was written and is there within `at_most_ms` of silence; a line ends in \r\n.
  std::string read_all(int at_most_ms = 0) const {
    std::string text;
    pollfd readable{.fd = master_, .events = POLLIN, .revents = 0};
    while (poll(&readable, 1, at_most_ms) == 1) {
      std::array<char, 4096> block{};
      const ssize_t got = read(master_, block.data(), block.size());
      if (got <= 0) break;
      text.append(block.data(), got);
    }
    return text;
  }

 private:
  int master_, slave_ = -1;
};

}  // namespace fsdp::testing

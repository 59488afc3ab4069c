#include "terminal/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <utility>

namespace terminal {

Console::Console(std::FILE* out)
    : out_(out), terminal_(out != nullptr && isatty(fileno(out)) == 1) {}

Console::~Console() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

void Console::print(std::string_view text) {
  if (out_ == nullptr) return;
  std::fflush(out_);  // writes text that other code left in the buffer
  const std::lock_guard lock(mutex_);
  // If poll reports that a stream is ready, it accepts PIPE_BUF bytes without blocking (pipe(7)).
  // Stored text must be written first, so print() writes nothing while there is stored text.
  while (!text.empty() && kept_.empty() && takes_now()) {
    const std::string_view now = text.substr(0, PIPE_BUF);
    write(now);
    text.remove_prefix(now.size());
  }
  if (text.empty()) return;
  kept_ += text;
  if (!writer_.joinable()) writer_ = std::thread([this] { write_kept(); });
  changed_.notify_all();
}

bool Console::is_behind() const {
  const std::lock_guard lock(mutex_);
  return !kept_.empty();
}

int Console::columns() const {
  winsize size{};
  return terminal_ && ioctl(fileno(out_), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool Console::takes_now() const {
  pollfd stream{.fd = fileno(out_), .events = POLLOUT, .revents = 0};
  return poll(&stream, 1, /*timeout=*/0) != 0;  // a write to a failed stream does not block
}

void Console::write(std::string_view text) {
  // This write bypasses the buffer of the FILE. Otherwise the lock of the FILE would be held while
  // the reader pauses, and an error line would block.
  while (!text.empty()) {
    const ssize_t written = ::write(fileno(out_), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void Console::write_kept() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !kept_.empty(); });
    if (kept_.empty()) return;
    const std::string now = kept_.substr(0, PIPE_BUF);
    lock.unlock();
    write(now);
    lock.lock();
    kept_.erase(0, now.size());  // after the write, so that print() does not overtake it
  }
}

}  // namespace terminal

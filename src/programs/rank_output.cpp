#include "rank_output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/standard_streams.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr int kLookEveryMs = 100;

// Writes all of `text`. If the file is closed or full, the rest is dropped and the job continues.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // another process that shares the file set O_NONBLOCK
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, /*timeout=*/-1);
      continue;
    }
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

// Writes `text` to stderr. A line that begins with "fsdp: " starts on a new row of the terminal.
// Other text is written unchanged, because a rank may draw a line in pieces.
void show_on_stderr(const std::string& text) {
  const bool begins_ours = text.starts_with("fsdp: ");
  write_all(STDERR_FILENO, begins_ours ? fresh_row(STDERR_FILENO) + text : text);
}

// Reads the bytes that are available now. Returns an empty string if no byte is available.
std::string read_some(int fd) {
  std::array<char, 65536> block;
  const ssize_t got = read(fd, block.data(), block.size());
  return got > 0 ? std::string(block.data(), static_cast<size_t>(got)) : std::string();
}

}  // namespace

RankOutput::RankOutput(std::string followed, bool all_errors)
    : followed_(std::move(followed)), errors_(all_errors) {
  if (!followed_.empty()) return;
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw DeviceError({.what = "a pipe for the ranks' stderr cannot be created",
                       .cause = std::strerror(errno),
                       .hint = "raise the limit of open files (ulimit -n)"});
  }
  read_end_ = Descriptor(ends[0]);
  write_end_ = Descriptor(ends[1]);
  fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);  // so that the read in show() does not block
}

RankOutput::~RankOutput() { finish(); }

void RankOutput::become_stderr() const {
  if (write_end_) dup2(write_end_.get(), STDERR_FILENO);
}

void RankOutput::start() {
  thread_ = std::thread([this] { show(); });
}

void RankOutput::finish() {
  if (!thread_.joinable()) return;
  ended_ = true;
  // Closing the last write end wakes the thread. A process that a rank started may still hold a
  // write end, so the thread also checks ended_ every 100 ms.
  write_end_ = Descriptor();
  thread_.join();
  show_on_stderr(errors_.rest());
}

void RankOutput::show() {
  while (true) {
    const bool last = ended_;  // read before the output, so that no output is missed
    pollfd readable{.fd = read_end_.get(), .events = POLLIN, .revents = 0};
    poll(&readable, 1, last ? 0 : kLookEveryMs);
    bool more = show_errors();
    more = show_followed() || more;
    if (last && !more) return;
  }
}

bool RankOutput::show_errors() {
  if (!read_end_) return false;
  const std::string bytes = read_some(read_end_.get());
  show_on_stderr(errors_.take(bytes));
  return !bytes.empty();
}

bool RankOutput::show_followed() {
  if (followed_.empty()) return false;
  // Rank 0 creates the file in its own process, so the file may not exist yet. In that case the
  // next call tries again.
  if (!followed_file_) followed_file_ = Descriptor(open(followed_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!followed_file_) return false;
  // At the file's end read returns 0 bytes; later calls return what rank 0 has added.
  const std::string bytes = read_some(followed_file_.get());
  write_all(STDOUT_FILENO, bytes);
  return !bytes.empty();
}

}  // namespace fsdp

// Prints text to a stream whose reader may pause, for example a pager, or a terminal after Ctrl-S.
//
//   terminal::Console console(stdout);  // before run_program, which ends first
//   console.print("epoch 3\n");
#pragma once

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace terminal {

// A console that does not block the printing thread. If a rank blocked, other ranks would wait for
// it, until they time out. Text that the stream does not accept is stored, and a thread writes it
// later.
class Console {
 public:
  // Writes to `out`. If `out` is null (on ranks other than 0), the text is discarded.
  // Requires: `out` outlives this object, and no other code writes to it.
  explicit Console(std::FILE* out);
  // Waits until all text is written.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Prints texts in the order of the calls. If a text cannot be written (a full disk), it is lost.
  // Thread-safe.
  void print(std::string_view text);

  bool shows() const { return out_ != nullptr; }
  // Returns true if printed text is not written yet.
  bool is_behind() const;
  bool is_terminal() const { return terminal_; }
  // Returns the current width of the terminal, or 0 if it is unknown or the stream is not a
  // terminal.
  int columns() const;

 private:
  bool takes_now() const;
  void write(std::string_view text);
  void write_kept();

  std::FILE* out_;
  bool terminal_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string kept_;
  bool closing_ = false;
  std::thread writer_;  // starts when the stream first does not accept text
};

}  // namespace terminal

// Text for a person, on a stream that may stop taking it: a pager that waits, a terminal after
// Ctrl-S.
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

// Whoever prints does not wait for the reader, and so lets no other rank wait, up to the time-out:
// what the stream does not take is kept, and written by a thread as soon as it does.
class Console {
 public:
  // Writes to `out`, which outlives this object and is written to by nobody else; nothing if it is
  // null (ranks other than 0).
  explicit Console(std::FILE* out);
  // Waits until all is written.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // In the order of calls. Text that cannot be written (a full disk) is lost. Thread-safe.
  void print(std::string_view text);

  bool shows() const { return out_ != nullptr; }
  // What is printed is not written yet.
  bool is_behind() const;
  bool is_terminal() const { return terminal_; }
  // Of a terminal, as wide as it is now; 0 elsewhere, or where it does not say.
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
  std::thread writer_;  // since the stream did not take something
};

}  // namespace terminal

// What ranks write, on its way to whoever started them.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "comm/descriptor.h"
#include "error_lines.h"

namespace fsdp {

// Without a log folder ranks write to stdout themselves, and to stderr through here, where each
// error is shown once. With one their output goes to files, and what rank 0 adds to its own is
// shown on stdout.
class RankOutput {
 public:
  // `followed`: rank 0's output in the log folder, or empty.
  RankOutput(std::string followed, bool all_errors);
  ~RankOutput();
  RankOutput(const RankOutput&) = delete;
  RankOutput& operator=(const RankOutput&) = delete;

  // Takes the place of a rank's stderr, in the rank's process; nothing with a log folder.
  void become_stderr() const;
  // Starts to show; a process must not fork any more.
  void start();
  // Returns when all that ranks have written is shown. Requires: they have ended.
  void finish();
  // ErrorLines::has_said. Requires: finish() has returned.
  bool has_said(int code) const { return errors_.has_said(code); }

 private:
  void show();
  bool show_errors();
  bool show_followed();

  std::string followed_;
  Descriptor read_end_, write_end_;  // of a pipe that is every rank's stderr
  Descriptor followed_file_;
  ErrorLines errors_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace fsdp

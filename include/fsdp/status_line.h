// The line that tells a person how far a run is: redrawn on a terminal, now and then in a log.
//
//   fsdp::StatusLine status(mesh.rank() == 0 ? stdout : nullptr, "step", steps, 50);
//   for (…) status.update(step, "loss 1.23");  // "step  7/500  loss 1.23  0:42 left"
#pragma once

#include <fsdp/console.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

class StatusLine {
 public:
  // Writes to `out`, which outlives this object; nothing is shown if it is null (ranks other than
  // 0). On a terminal the line is redrawn, at most ten times a second, and never wider than it;
  // elsewhere it is a line of its own at the first, the last and every `every`-th of `total`.
  StatusLine(std::FILE* out, std::string_view what, int64_t total, int64_t every);
  // The same, among what else is printed there.
  StatusLine(Console& console, std::string_view what, int64_t total, int64_t every);
  // Ends the line if one is being drawn.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // `details` stands between the count and the time left, which follows from the mean speed so far.
  // Of its parts, which two spaces separate, the last go where a terminal is too narrow.
  void update(int64_t done, std::string_view details);
  // Shows one line between two updates.
  void note(std::string_view line);
  // Shows `text`, whole lines with an empty one before, between two updates.
  void interrupt(std::string_view text);
  double seconds() const;  // since construction

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  std::unique_ptr<Console> own_;  // if none was given
  Console& console_;
  std::string what_;
  int64_t total_, every_;
  bool open_line_ = false;
  TimePoint began_ = std::chrono::steady_clock::now();
  TimePoint drawn_{};
};

// "4:07", "1:02:03".
std::string clock_text(double seconds);

}  // namespace fsdp

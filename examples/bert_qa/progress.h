// The line that tells a person how far a run is: redrawn on a terminal, now and then in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace bert_qa {

class Progress {
 public:
  // Nothing is shown if `out` is null (ranks other than 0). In a log, a line every `every` units.
  Progress(std::FILE* out, std::string_view what, int64_t total, int64_t every);
  // Ends the line if one is being drawn.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `details` stands between the count and the time left, which follows from the mean speed so far.
  void update(int64_t done, std::string_view details);
  // Shows one line between two updates.
  void note(std::string_view line);
  // Shows `text`, whole lines with an empty one before, between two updates.
  void interrupt(std::string_view text);
  double seconds() const;  // since construction

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;
  std::string what_;
  int64_t total_, every_;
  bool terminal_;
  bool open_line_ = false;
  Clock::time_point began_ = Clock::now();
  Clock::time_point drawn_{};
};

// "4:07", "1:02:03".
std::string clock_text(double seconds);

}  // namespace bert_qa

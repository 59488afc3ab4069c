// Shows the progress of a run: a line that is redrawn on a terminal, and some lines in a log.
//
//   terminal::StatusLine status(mesh.rank() == 0 ? stdout : nullptr, "step", steps, 50);
//   for (…) status.update(step, {.epoch = e, .loss = loss, .learning_rate = lr, .samples = 32});
//   // "step  7/500  epoch 0.42  loss 1.2345  lr 2.00e-05  12.3 samples/s  0:42 left"
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "terminal/console.h"

namespace terminal {

// A step of training, of all ranks.
struct TrainingStep {
  double epoch = 0;  // 1.5: the data was seen once and a half
  double loss = 0;
  double learning_rate = 0;
  int64_t samples = 0;
};

// The status line.
class StatusLine {
 public:
  // Writes to `out`, or shows nothing if it is null (ranks other than 0). On a terminal the line is
  // redrawn, at most ten times a second, and is never wider than the terminal. On other streams a
  // line is printed at the first, the last and every `every`-th of `total`.
  // Requires: `out` outlives this object.
  StatusLine(std::FILE* out, std::string_view what, int64_t total, int64_t every);
  // Writes to a console that prints other text, too.
  StatusLine(Console& console, std::string_view what, int64_t total, int64_t every);
  // Ends the line if one is being drawn.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows the count, `details` and the time left, which follows from the mean speed so far. Two
  // spaces separate the parts of `details`; on a narrow terminal the last parts are left out.
  void update(int64_t done, std::string_view details);
  // Shows a step of training; call it after each. Loss and samples per second are means in which
  // the last ten steps have two thirds of the weight. A loss that is not finite is shown once.
  void update(int64_t done, const TrainingStep& step);
  // Shows one line between two updates.
  void note(std::string_view line);
  // Shows `text`, whole lines with an empty one before, between two updates.
  void interrupt(std::string_view text);
  double seconds() const;  // since construction

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A mean with weights that decay with each new value.
  class Smoothed {
   public:
    // Returns the mean with `value`. If `value` is not finite, returns it and leaves it out.
    double add(double value);

   private:
    double sum_ = 0, weight_ = 0;
  };

  std::unique_ptr<Console> own_;  // if none was given
  Console& console_;
  std::string what_;
  int64_t total_, every_;
  bool open_line_ = false;
  TimePoint began_ = std::chrono::steady_clock::now();
  TimePoint drawn_{};
  TimePoint updated_ = began_;
  Smoothed loss_, samples_, step_seconds_;
};

// Returns "4:07" or "1:02:03".
std::string clock_text(double seconds);

}  // namespace terminal

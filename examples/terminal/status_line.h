// Shows the progress of a run: on a terminal as a line that is redrawn, in a log as a few lines.
//
//   terminal::StatusLine status(mesh.rank() == 0 ? stdout : nullptr, "step", steps, 50);
//   for (…) status.update(step, {.epoch = e, .loss = loss, .learning_rate = lr, .samples = 32});
//   // "step  7/500  loss 1.2345  epoch 0.42  lr 2.00e-05  12.3 samples/s  0:42 left"
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "terminal/console.h"

namespace terminal {

// A training step of all ranks.
struct TrainingStep {
  double epoch = 0;  // 1.5: one and a half passes over the data
  double loss = 0;
  double learning_rate = 0;
  int64_t samples = 0;
};

// The status line.
class StatusLine {
 public:
  // Writes to `out`. If `out` is null (on ranks other than 0), nothing is shown. On a terminal the
  // line is redrawn at most ten times per second and is never wider than the terminal. On other
  // streams, a line is printed for the first, the last and every `every`-th of `total`. A run that
  // resumes passes the number `begin` that earlier runs have done.
  // Requires: `out` outlives this object.
  StatusLine(std::FILE* out, std::string_view what, int64_t total, int64_t every,
             int64_t begin = 0);
  // Writes to a console that also prints other text.
  StatusLine(Console& console, std::string_view what, int64_t total, int64_t every,
             int64_t begin = 0);
  // Ends the line if one is being drawn.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows the count, `details` and the remaining time, which is computed from the mean speed since
  // construction. Two spaces separate the parts of `details`. On a narrow terminal the last parts
  // are left out.
  void update(int64_t done, std::string_view details);
  // Shows a training step. The caller must call it after each step. Loss and samples per second are
  // moving means, in which the last ten steps have two thirds of the weight. A non-finite loss is
  // shown once.
  void update(int64_t done, const TrainingStep& step);
  // Shows one line between two updates.
  void note(std::string_view line);
  // Shows `text` between two updates, after an empty line. `text` must consist of whole lines.
  void interrupt(std::string_view text);
  double seconds() const;  // since construction

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A moving mean. The weight of a value decays with each new value.
  class Smoothed {
   public:
    // Adds `value` and returns the mean. If `value` is not finite, it is returned and not added.
    double add(double value);

   private:
    double sum_ = 0, weight_ = 0;
  };

  std::unique_ptr<Console> own_;  // set if no console was given
  Console& console_;
  std::string what_;
  int64_t total_, every_, begin_;
  bool open_line_ = false;
  TimePoint began_ = std::chrono::steady_clock::now();
  TimePoint drawn_{};
  TimePoint updated_ = began_;
  Smoothed loss_, samples_, step_seconds_;
};

// Returns "4:07" or "1:02:03".
std::string clock_text(double seconds);

}  // namespace terminal

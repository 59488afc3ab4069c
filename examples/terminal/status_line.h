// The line that tells a person how far a run is: redrawn on a terminal, now and then in a log.
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
  // The same for a step of training; called after each. Loss and samples a second are means in
  // which the last ten steps make two thirds; a loss that is not finite is shown as it is, once.
  void update(int64_t done, const TrainingStep& step);
  // Shows one line between two updates.
  void note(std::string_view line);
  // Shows `text`, whole lines with an empty one before, between two updates.
  void interrupt(std::string_view text);
  double seconds() const;  // since construction

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  // A mean in which a value weighs less with each that follows.
  class Smoothed {
   public:
    // Returns the mean with `value`; `value` itself, and leaves it out, if it is not finite.
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

// "4:07", "1:02:03".
std::string clock_text(double seconds);

}  // namespace terminal

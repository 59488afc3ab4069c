#include "terminal/status_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace terminal {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);

// Returns the leading parts of `details` that fit beside `others` columns. If `columns` is 0,
// returns all parts.
std::string_view fitting(std::string_view details, size_t others, int columns) {
  while (columns > 0 && others + details.size() > static_cast<size_t>(columns)) {
    const size_t last = details.rfind("  ");
    if (last == std::string_view::npos) return {};
    details = details.substr(0, last);
  }
  return details;
}

}  // namespace

StatusLine::StatusLine(std::FILE* out, std::string_view what, int64_t total, int64_t every,
                       int64_t begin)
    : own_(std::make_unique<Console>(out)),
      console_(*own_),
      what_(what),
      total_(total),
      every_(every),
      begin_(begin) {}

StatusLine::StatusLine(Console& console, std::string_view what, int64_t total, int64_t every,
                       int64_t begin)
    : console_(console), what_(what), total_(total), every_(every), begin_(begin) {}

StatusLine::~StatusLine() {
  if (open_line_) console_.print("\n");
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void StatusLine::update(int64_t done, std::string_view details) {
  if (!console_.shows()) return;
  const bool last = done == total_, terminal = console_.is_terminal();
  const TimePoint now = std::chrono::steady_clock::now();
  // A terminal that is behind would show outdated lines one after the other: skip them.
  const bool too_soon = terminal ? now - drawn_ < kRedraw || console_.is_behind()
                                 : done != begin_ + 1 && done % every_ != 0;
  if (too_soon && !last) return;
  drawn_ = now;
  const double left = done > begin_ ? seconds() / (done - begin_) * (total_ - done) : 0;
  const std::string count =
      fmt::format("{} {:>{}}/{}  ", what_, done, fmt::formatted_size("{}", total_), total_);
  const std::string time = clock_text(left) + " left";
  // The last column is not used, because a terminal may wrap after it.
  const int columns = std::max(console_.columns() - 1, 0);
  const std::string_view shown = fitting(details, count.size() + 2 + time.size(), columns);
  std::string line = fmt::format("{}{}{}{}", count, shown, shown.empty() ? "" : "  ", time);
  if (columns > 0) line.resize(std::min(line.size(), static_cast<size_t>(columns)));
  // The escape sequence erases the end of a longer previous line.
  console_.print(fmt::format("{}{}{}", terminal ? "\r" : "", line, terminal ? "\x1b[K" : "\n"));
  open_line_ = terminal;
}

void StatusLine::update(int64_t done, const TrainingStep& step) {
  const TimePoint now = std::chrono::steady_clock::now();
  const double seconds =
      step_seconds_.add(std::chrono::duration<double>(now - std::exchange(updated_, now)).count());
  const double samples = samples_.add(static_cast<double>(step.samples));
  update(done,
         fmt::format("loss {:.4f}  epoch {:.2f}  lr {:.2e}  {:.1f} samples/s", loss_.add(step.loss),
                     step.epoch, step.learning_rate, seconds > 0 ? samples / seconds : 0.0));
}

double StatusLine::Smoothed::add(double value) {
  constexpr double kKept = 0.9;
  if (!std::isfinite(value)) return value;
  sum_ = kKept * sum_ + value;
  weight_ = kKept * weight_ + 1;
  return sum_ / weight_;
}

void StatusLine::note(std::string_view line) {
  console_.print(fmt::format("{}{}\n", open_line_ ? "\n" : "", line));
  open_line_ = false;
}

void StatusLine::interrupt(std::string_view text) {
  console_.print(fmt::format("{}\n{}\n", open_line_ ? "\n" : "", text));
  open_line_ = false;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace terminal

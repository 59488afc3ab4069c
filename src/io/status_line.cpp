#include "fsdp/status_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace fsdp {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);

}  // namespace

StatusLine::StatusLine(std::FILE* out, std::string_view what, int64_t total, int64_t every)
    : out_(out),
      what_(what),
      total_(total),
      every_(every),
      terminal_(out != nullptr && isatty(fileno(out)) == 1) {}

StatusLine::~StatusLine() {
  if (open_line_) std::fputs("\n", out_);
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void StatusLine::update(int64_t done, std::string_view details) {
  if (out_ == nullptr) return;
  const bool last = done == total_;
  const TimePoint now = std::chrono::steady_clock::now();
  if (terminal_ ? !last && now - drawn_ < kRedraw : !last && done != 1 && done % every_ != 0)
    return;
  drawn_ = now;
  const double left = done > 0 ? seconds() / done * (total_ - done) : 0;
  const std::string line =
      fmt::format("{} {:>{}}/{}  {}  {} left", what_, done, fmt::formatted_size("{}", total_),
                  total_, details, clock_text(left));
  // The rest of a longer line before this one is erased.
  fmt::print(out_, "{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "\n");
  std::fflush(out_);
  open_line_ = terminal_;
}

void StatusLine::note(std::string_view line) {
  if (out_ == nullptr) return;
  fmt::print(out_, "{}{}\n", open_line_ ? "\n" : "", line);
  std::fflush(out_);
  open_line_ = false;
}

void StatusLine::interrupt(std::string_view text) {
  if (out_ == nullptr) return;
  fmt::print(out_, "{}\n{}\n", open_line_ ? "\n" : "", text);
  std::fflush(out_);
  open_line_ = false;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

}  // namespace fsdp

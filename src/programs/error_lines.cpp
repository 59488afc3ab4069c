#include "error_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace fsdp {
namespace {

constexpr std::string_view kBegin = "fsdp: error[";

struct Parts {
  std::string_view code, rank, text;
};

// Splits "fsdp: error[CODE] rank R/W host H step S: TEXT". Returns nothing for other lines.
std::optional<Parts> parts_of(std::string_view line) {
  constexpr std::string_view kRank = "] rank ";
  if (!line.starts_with(kBegin)) return std::nullopt;
  const size_t rank = line.find(kRank, kBegin.size());
  if (rank == std::string_view::npos) return std::nullopt;
  const size_t slash = line.find('/', rank + kRank.size());
  const size_t text = line.find(": ", rank + kRank.size());
  if (slash == std::string_view::npos || text == std::string_view::npos || text < slash) {
    return std::nullopt;
  }
  return Parts{.code = line.substr(kBegin.size(), rank - kBegin.size()),
               .rank = line.substr(rank + kRank.size(), slash - rank - kRank.size()),
               .text = line.substr(text)};
}

// Returns true if the line is an error line, or could become one when more bytes arrive.
bool may_become_error(std::string_view line) {
  return line.starts_with(kBegin) || kBegin.starts_with(line);
}

}  // namespace

std::string ErrorLines::take(std::string_view bytes) {
  std::string shown;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    line_ += bytes.substr(0, whole ? end + 1 : bytes.size());
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    // Only the beginning of a possible error line is held back. Other unfinished lines are shown at
    // once, because a rank may draw a status line in pieces.
    if (!whole && !inside_ && may_become_error(line_)) break;
    const bool repeated = !inside_ && is_repeated(line_);
    if (all_ || !repeated) shown += line_;
    line_.clear();
    inside_ = !whole;
  }
  return shown;
}

std::string ErrorLines::rest() {
  std::string shown = std::move(line_);
  line_.clear();
  for (const Said& said : said_) {
    if (all_ || said.others == 0) continue;
    shown += fmt::format("fsdp: note: {} other {} the same as rank {}\n", said.others,
                         said.others == 1 ? "rank says" : "ranks say", said.rank);
  }
  return shown;
}

bool ErrorLines::has_said(int code) const {
  const std::string begin = fmt::format("{}: ", code);
  return std::ranges::any_of(said_, [&](const Said& said) { return said.text.starts_with(begin); });
}

bool ErrorLines::is_repeated(std::string_view line) {
  const std::optional<Parts> parts = parts_of(line);
  if (!parts) return false;
  // The key consists of code and text. It omits rank, host and step, so equal errors of two ranks
  // have equal keys.
  const std::string text = fmt::format("{}{}", parts->code, parts->text);
  const auto before = std::ranges::find(said_, text, &Said::text);
  if (before == said_.end()) {
    said_.push_back({.text = text, .rank = std::string(parts->rank)});
    return false;
  }
  ++before->others;
  return true;
}

}  // namespace fsdp

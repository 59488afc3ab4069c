#include "comm/job/control_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

std::string lines_as_text(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

// The first line in which two texts differ: its number, and its contents in each text.
struct Difference {
  int line;
  std::string first, second;
};

std::optional<Difference> first_difference(std::string_view a, std::string_view b) {
  const auto next_line = [](std::string_view& rest) {
    // "(nothing)" takes the place of a line that a text does not have.
    if (rest.empty()) return std::string("(nothing)");
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return line;
  };
  for (int line = 1; !a.empty() || !b.empty(); ++line) {
    std::string in_a = next_line(a);
    std::string in_b = next_line(b);
    if (in_a != in_b) return Difference{line, std::move(in_a), std::move(in_b)};
  }
  return std::nullopt;
}

}  // namespace

void ControlPlane::agree(const CollectiveTag& tag, const std::vector<std::string>& lines) {
  // Every rank compares all texts with the text of rank 0, so all ranks find the same difference.
  const auto texts = exchange(tag, lines_as_text(lines));
  for (int other = 1; other < world_size(); ++other) {
    const auto difference = first_difference(texts[0], texts[other]);
    if (!difference) continue;
    // This text becomes the job's first failure. A rank that is still in the exchange throws this
    // failure as well.
    fail(
        {.rank = -1,
         .code = ExitCode::kConfiguration,
         .text = {.what = fmt::format("ranks do not agree on the {}: rank {} has '{}', rank {} has "
                                      "'{}'",
                                      tag.label, job_rank(0), difference->first, job_rank(other),
                                      difference->second),
                  .where = fmt::format("{}, line {}", tag.label, difference->line),
                  .hint = "start all ranks with the same program, options and files"}});
    throw_first_failure({});
  }
}

void ControlPlane::throw_first_failure(std::string_view where) const {
  throw_failure(first_failure(), where);
}

void ControlPlane::abort(std::string_view cause) noexcept {
  fail(failure_of_abort(job_rank(rank()), cause));
}

}  // namespace fsdp

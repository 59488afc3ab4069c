#include <algorithm>
#include <numeric>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Returns 1 if one of the two texts is the beginning of the other and `typed` has at least kTelling
// characters. Otherwise returns the edit distance of the two texts.
size_t distance_of(std::string_view typed, std::string_view name) {
  constexpr size_t kTelling = 5;  // "--" and three letters
  const bool begins = typed.starts_with(name) || name.starts_with(typed);
  return begins && typed.size() >= kTelling ? 1 : edit_distance(typed, name);
}

}  // namespace

// Computes the table of edit distances row by row, and stores only one row.
size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t exchanged = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({exchanged, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string nearest_of(std::string_view typed, const std::vector<std::string>& names) {
  // A suggested name must differ in fewer than four letters, and in fewer letters than half the
  // length of the typed text.
  constexpr size_t kFar = 4;
  std::string nearest;
  size_t least = std::min(kFar, typed.size() / 2);
  for (const std::string& name : names) {
    const size_t distance = distance_of(typed, name);
    if (distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace fsdp

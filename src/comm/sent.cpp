#include "comm/sent.h"

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

// Calls visit(bytes, numel) for each contiguous run in [element, element + numel).
template <class Visit>
void visit_runs(const CollectivePart& part, int64_t element, int64_t numel, Visit visit) {
  if (part.runs.empty()) {
    if (numel > 0) visit(sent_together(part, element, numel), numel);
    return;
  }
  for (const SendRun& run : part.runs) {
    if (numel == 0) return;
    if (element >= run.numel) {
      element -= run.numel;
      continue;
    }
    const int64_t here = std::min(numel, run.numel - element);
    visit(static_cast<const std::byte*>(run.data) + element * size_of(part.dtype), here);
    numel -= here;
    element = 0;
  }
}

}  // namespace

const std::byte* sent_together(const CollectivePart& part, int64_t element, int64_t numel) {
  if (part.runs.empty()) {
    return static_cast<const std::byte*>(part.send) + element * size_of(part.dtype);
  }
  // A range within one run is contiguous, so it is visited exactly once.
  const std::byte* together = nullptr;
  visit_runs(part, element, numel, [&](const std::byte* bytes, int64_t here) {
    if (here == numel) together = bytes;
  });
  return together;
}

void copy_sent(const CollectivePart& part, int64_t element, int64_t numel, void* to) {
  auto* out = static_cast<std::byte*>(to);
  const auto copy = [&](const std::byte* from, int64_t count) {
    const int64_t bytes = count * size_of(part.dtype);
    // Data that are in place are skipped, because memcpy allows no overlap.
    if (from != out && bytes > 0) std::memcpy(out, from, bytes);
    out += bytes;
  };
  visit_runs(part, element, numel, copy);
}

void append_runs(const CollectivePart& part, int64_t element, int64_t numel,
                 std::vector<SendRun>& runs) {
  const std::byte* end = nullptr;
  if (!runs.empty()) {
    const SendRun& last = runs.back();
    end = static_cast<const std::byte*>(last.data) + last.numel * size_of(part.dtype);
  }
  visit_runs(part, element, numel, [&](const std::byte* data, int64_t here) {
    if (data == end) {
      runs.back().numel += here;
    } else {
      runs.push_back({.data = data, .numel = here});
    }
    end = data + here * size_of(part.dtype);
  });
}

}  // namespace fsdp

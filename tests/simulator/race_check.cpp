#include "simulator/race_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fsdp::testing {
namespace {

std::string name_of(const CodePlace& place) {
  const std::string_view file = place.file;
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), place.line);
}

}  // namespace

int RaceCheck::add_stream(std::string name) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::move(name));
  // Every clock has an entry for every stream, so that two clocks can be merged entry by entry.
  for (Clock& clock : clocks_) clock.push_back(0);
  clocks_.emplace_back(streams_.size(), 0);
  return static_cast<int>(streams_.size()) - 1;
}

void RaceCheck::add_memory(const void* begin, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  memory_[address] = address + static_cast<uintptr_t>(bytes);
}

void RaceCheck::remove_memory(const void* begin) {
  const std::lock_guard lock(mutex_);
  const auto found = memory_.find(reinterpret_cast<uintptr_t>(begin));
  if (found == memory_.end()) return;
  std::erase_if(accesses_, [&](const Access& access) {
    return access.begin >= found->first && access.end <= found->second;
  });
  memory_.erase(found);
}

RaceCheck::Clock RaceCheck::mark(int stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[stream];
}

void RaceCheck::wait(int stream, const Clock& mark, const CodePlace& place) {
  const std::lock_guard lock(mutex_);
  const std::string name = name_of(place);
  // The place is recorded even if the wait is left out, so that a test can iterate over all places.
  places_.insert(name);
  if (name == left_out_) return;
  Clock& clock = clocks_[stream];
  for (size_t i = 0; i < mark.size(); ++i) clock[i] = std::max(clock[i], mark[i]);
}

void RaceCheck::host_waits(const Clock& mark) {
  const std::lock_guard lock(mutex_);
  for (Clock& clock : clocks_) {
    for (size_t i = 0; i < mark.size(); ++i) clock[i] = std::max(clock[i], mark[i]);
  }
}

void RaceCheck::work(int stream, std::string_view what, std::span<const TouchedBytes> touched) {
  const std::lock_guard lock(mutex_);
  const uint64_t tick = ++clocks_[stream][stream];
  for (const TouchedBytes& bytes : touched) {
    const auto begin = reinterpret_cast<uintptr_t>(bytes.begin);
    if (bytes.count == 0 || !is_known(begin)) continue;
    check(stream, what,
          {.begin = begin,
           .end = begin + static_cast<uintptr_t>(bytes.count),
           .stream = stream,
           .tick = tick,
           .writes = bytes.writes,
           .what = std::string(what)});
  }
}

bool RaceCheck::is_known(uintptr_t begin) const {
  auto after = memory_.upper_bound(begin);
  return after != memory_.begin() && begin < std::prev(after)->second;
}

bool RaceCheck::is_seen(int stream, const Access& access) const {
  return access.stream == stream || clocks_[stream][access.stream] >= access.tick;
}

void RaceCheck::check(int stream, std::string_view what, const Access& now) {
  for (const Access& before : accesses_) {
    const bool overlaps = before.begin < now.end && now.begin < before.end;
    if (!overlaps || !(before.writes || now.writes) || is_seen(stream, before)) continue;
    found_.insert(fmt::format("'{}' on {} {} what '{}' on {} {}", what, streams_[stream],
                              now.writes ? "writes" : "reads", before.what, streams_[before.stream],
                              before.writes ? "writes" : "reads"));
  }
  // Drops earlier accesses that this access covers, because work that is ordered with this access
  // is also ordered with them. A write covers all earlier accesses. A read covers only earlier
  // reads of its stream.
  std::erase_if(accesses_, [&](const Access& before) {
    const bool covered = now.begin <= before.begin && before.end <= now.end;
    return covered && is_seen(stream, before) && (now.writes || !before.writes) &&
           (now.writes || before.stream == stream);
  });
  accesses_.push_back(now);
}

std::set<std::string> RaceCheck::places() const {
  const std::lock_guard lock(mutex_);
  return places_;
}

void RaceCheck::leave_out(std::string place) {
  const std::lock_guard lock(mutex_);
  left_out_ = std::move(place);
}

std::set<std::string> RaceCheck::found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

}  // namespace fsdp::testing

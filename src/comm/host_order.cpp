#include "comm/host_order.h"

#include <fmt/format.h>

#include "comm/fingerprint.h"

namespace fsdp {

CollectiveTag HostOrder::next(Operation operation, int64_t numel, std::string_view label) {
  const std::lock_guard lock(mutex_);
  ++sequence_;
  hash_ = mix(hash_, static_cast<uint64_t>(operation));
  hash_ = mix(hash_, static_cast<uint64_t>(numel));
  hash_ = mix_text(hash_, label);
  Entry entry;
  if (!keeps_all_ && entries_.size() == kRecentCollectives) {
    entry = std::move(entries_.front());  // its label's memory serves again
    entries_.pop_front();
  }
  entry.sequence = sequence_;
  entry.operation = operation;
  entry.numel = numel;
  entry.label.assign(label);
  entries_.push_back(std::move(entry));
  return {.sequence = sequence_, .label = label};
}

uint64_t HostOrder::hash() const {
  const std::lock_guard lock(mutex_);
  return hash_;
}

std::vector<std::string> HostOrder::recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  lines.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    lines.push_back(fmt::format("#{} {} {} {}", entry.sequence, name_of(entry.operation),
                                entry.numel, entry.label));
  }
  return lines;
}

void HostOrder::keep_all() {
  const std::lock_guard lock(mutex_);
  keeps_all_ = true;
}

}  // namespace fsdp

#include "memory/memory_budget.h"

#include <fmt/format.h>

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

MemoryCap::MemoryCap(int64_t bytes, std::shared_ptr<MemoryMeter> by)
    : limit(bytes), meter(std::move(by)) {
  if (meter) meter->set_limit(limit);
}

MemoryCap::~MemoryCap() {
  if (!meter) return;
  // The last engine with this limit was destroyed. The engine's blocks may outlive the engine, so
  // the meter continues to count.
  meter->set_limit(0);
  meter->set_refusal({});
}

std::shared_ptr<const MemoryCap> MemoryBudget::cap(int64_t limit) {
  if (limit < 0) {
    throw InvalidArgument(
        {.what = fmt::format("memory_limit is {}, expected 0 or more", limit),
         .where = "Options::memory_limit",
         .hint = "set the bytes that a rank may hold on its device, or 0 for no limit"});
  }
  const std::lock_guard lock(mutex_);
  // cap_ is a weak reference, so the cap is freed with the last engine. A later engine may then set
  // another limit.
  if (auto cap = cap_.lock()) {
    if (cap->limit == limit) return cap;
    throw InvalidArgument(
        {.what = fmt::format("engines of one mesh have different memory limits, {} and {} bytes",
                             cap->limit, limit),
         .where = "Options::memory_limit",
         .cause = "all engines of a rank share one budget of device memory",
         .hint = "give all engines of a mesh the same memory_limit, or destroy "
                 "the other engine first"});
  }
  // The meter is created once and kept, because a later engine's meter must also count the blocks
  // that earlier engines have not freed.
  if (limit > 0 && !meter_) meter_ = std::make_shared<MemoryMeter>();
  auto cap = std::make_shared<const MemoryCap>(limit, limit > 0 ? meter_ : nullptr);
  cap_ = cap;
  return cap;
}

}  // namespace fsdp

#include "simulator/ptx/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "simulator/ptx/program.h"

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kWindow = uint64_t{64} << 10;

template <class Map>
auto last_from(Map& map, uint64_t address) {
  auto after = map.upper_bound(address);
  return after == map.begin() ? map.end() : std::prev(after);
}

uint64_t address_of(const void* begin) { return reinterpret_cast<uint64_t>(begin); }

}  // namespace

std::string Allocation::refused_write() const {
  return fmt::format("a write to {}, which may only be read", name);
}

Shadow& Allocation::shadow_of(uint64_t address) {
  auto& shadow = shadows[address / kWindow - begin / kWindow];
  if (!shadow) {
    const uint64_t window = address / kWindow * kWindow;
    shadow = std::make_unique<Shadow>(std::max(begin, window), std::min(end(), window + kWindow),
                                      defined_at_first);
  }
  return *shadow;
}

void DeviceMemory::add(const void* begin, int64_t bytes, std::string name, bool defined) {
  auto allocation = std::make_unique<Allocation>();
  allocation->name = std::move(name);
  allocation->begin = address_of(begin);
  allocation->bytes = static_cast<uint64_t>(bytes);
  allocation->defined_at_first = defined;
  allocation->shadows.resize(allocation->end() / kWindow - allocation->begin / kWindow + 1);
  const uint64_t end = allocation->end();
  // New memory may reuse addresses of freed memory, so the records of freed memory there are
  // removed.
  std::erase_if(gone_, [&](const auto& each) {
    return each.first < end && allocation->begin < each.second.end;
  });
  found_last_ = nullptr;
  allocations_[allocation->begin] = std::move(allocation);
}

void DeviceMemory::remove(const void* begin) {
  const uint64_t address = address_of(begin);
  found_last_ = nullptr;
  if (const auto whole = carved_.find(address); whole != carved_.end()) {
    std::erase_if(allocations_, [&](const auto& part) {
      return part.first >= address && part.first < whole->second->end();
    });
    allocations_[address] = std::move(whole->second);
    carved_.erase(whole);
  }
  lose(address, "was freed");
}

void DeviceMemory::give_back(const void* part) { lose(address_of(part), "was given back"); }

void DeviceMemory::lose(uint64_t begin, std::string what) {
  const auto found = allocations_.find(begin);
  if (found == allocations_.end()) return;
  const Allocation& lost = *found->second;
  found_last_ = nullptr;
  gone_[begin] = {.end = lost.end(), .name = lost.name, .what = std::move(what)};
  allocations_.erase(found);
}

void DeviceMemory::carve(const void* begin, int64_t bytes, std::string name) {
  const uint64_t address = address_of(begin), end = address + static_cast<uint64_t>(bytes);
  auto whole = last_from(carved_, address);
  if (whole == carved_.end() || address >= whole->second->end()) {  // the whole's first part
    // The whole moves to carved_. From now on, only its parts are memory.
    found_last_ = nullptr;
    const auto at = allocations_.find(require(begin, bytes).begin);
    whole = carved_.emplace(at->first, std::move(at->second)).first;
    allocations_.erase(at);
  }
  const auto other = last_from(allocations_, end - 1);
  if (end > whole->second->end() ||
      (other != allocations_.end() && other->second->end() > address)) {
    throw Objection(fmt::format("{} of {} bytes is carved out of {}, where there is no room: {}",
                                name, bytes, whole->second->name, describe(address, bytes)));
  }
  add(begin, bytes, std::move(name), false);
}

void DeviceMemory::rename(const void* begin, std::string name) {
  require(begin, 1).name = std::move(name);
}

Allocation* DeviceMemory::find(uint64_t address, int64_t bytes) {
  if (found_last_ == nullptr || address < found_last_->begin || address >= found_last_->end()) {
    const auto found = last_from(allocations_, address);
    if (found == allocations_.end()) return nullptr;
    found_last_ = found->second.get();
  }
  return address + static_cast<uint64_t>(bytes) <= found_last_->end() ? found_last_ : nullptr;
}

std::string DeviceMemory::describe(uint64_t address, int64_t bytes) const {
  const auto there = last_from(allocations_, address);
  const bool is_there = there != allocations_.end() && address < there->second->end();
  for (auto gone = gone_.upper_bound(address); !is_there && gone != gone_.begin();) {
    --gone;
    if (address >= gone->second.end) continue;
    return fmt::format("{} bytes in {}, which {}", bytes, gone->second.name, gone->second.what);
  }
  const std::string text = fmt::format("{} bytes at {:#x}", bytes, address);
  if (there == allocations_.end()) return text + ", outside of device memory";
  const Allocation& before = *there->second;
  if (is_there) {
    return fmt::format("{} bytes at byte {} of {}, over its end", bytes, address - before.begin,
                       before.name);
  }
  return fmt::format("{}, outside of device memory, {} bytes behind {}", text,
                     address - before.end(), before.name);
}

Allocation& DeviceMemory::require(const void* begin, int64_t bytes) {
  Allocation* const allocation = find(address_of(begin), bytes);
  if (allocation == nullptr) throw Objection(describe(address_of(begin), bytes));
  return *allocation;
}

void DeviceMemory::for_each_shadow(
    const void* begin, int64_t bytes,
    const std::function<void(Shadow&, uint64_t at, int64_t count)>& visit) {
  Allocation& allocation = require(begin, bytes);
  const uint64_t end = address_of(begin) + static_cast<uint64_t>(bytes);
  for (uint64_t at = address_of(begin); at < end;) {
    Shadow& shadow = allocation.shadow_of(at);
    const uint64_t here = std::min(end, shadow.end()) - at;
    visit(shadow, at, static_cast<int64_t>(here));
    at += here;
  }
}

void DeviceMemory::define(const void* begin, int64_t bytes) {
  const Allocation& allocation = require(begin, bytes);
  if (allocation.only_read) throw Objection(allocation.refused_write());
  for_each_shadow(begin, bytes,
                  [](Shadow& shadow, uint64_t at, int64_t count) { shadow.define(at, count); });
}

void DeviceMemory::undefine(const void* begin, int64_t bytes) {
  for_each_shadow(begin, bytes, [](Shadow& shadow, uint64_t at, int64_t count) {
    shadow.define(at, count, false);
  });
}

void DeviceMemory::require_defined(const void* begin, int64_t bytes) {
  for_each_shadow(begin, bytes, [&](const Shadow& shadow, uint64_t at, int64_t count) {
    if (shadow.is_defined(at, count)) return;
    const Allocation& allocation = require(begin, bytes);
    throw Objection(
        fmt::format("a read of {} bytes at byte {} of {}, of which nobody has "
                    "written all",
                    bytes, address_of(begin) - allocation.begin, allocation.name));
  });
}

uint32_t DeviceMemory::begin_launch() {
  touched_.clear();
  return ++launches_;
}

Shadow& DeviceMemory::touch(Allocation& allocation, uint64_t address) {
  Shadow& shadow = allocation.shadow_of(address);
  if (shadow.begin_launch(launches_)) touched_[shadow.begin()] = &shadow;
  return shadow;
}

// Carved allocations may be adjacent, so ranges are merged only within one allocation.
std::vector<ByteRange> DeviceMemory::touched(bool writes) const {
  std::vector<ByteRange> ranges;
  for (const auto& [begin, shadow] : touched_) {
    std::vector<ByteRange> here;
    shadow->append_touched(writes, here);
    const bool continues = begin % kWindow == 0 && !allocations_.contains(begin);
    for (const ByteRange& range : here) {
      if (continues && !ranges.empty() && ranges.back().end == range.begin) {
        ranges.back().end = range.end;
      } else {
        ranges.push_back(range);
      }
    }
  }
  return ranges;
}

}  // namespace fsdp::testing::ptx

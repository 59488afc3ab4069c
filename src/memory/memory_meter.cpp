#include "memory/memory_meter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/program_text.h"
#include "runtime/out_of_memory.h"

namespace fsdp {

void MemoryMeter::take(MemoryOwner of, int64_t bytes) {
  MemoryDemand demand{.bytes = bytes, .of = of};
  Refuse refuse;
  {
    const std::lock_guard lock(mutex_);
    if (limit_ == 0 || bytes <= limit_ - reading_.now.total()) {
      part(reading_.now, of) += bytes;
      count_peaks();
      return;
    }
    demand.now = reading_.now;
    demand.limit = limit_;
    // refuse_ is copied here and called without the lock, because the function reads this meter. It
    // is a copy because another thread may replace refuse_ meanwhile.
    refuse = refuse_;
  }
  if (refuse) refuse(demand);
  throw OutOfMemory({.what = describe(demand)});
}

void MemoryMeter::give(MemoryOwner of, int64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  part(reading_.now, of) -= bytes;
}

// Does not throw if the limit is exceeded, because LibTorch has already allocated the bytes. The
// next take() throws.
void MemoryMeter::observe_torch(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  reading_.now.torch = bytes;
  count_peaks();
}

void MemoryMeter::count_peaks() {
  const MeteredBytes& now = reading_.now;
  reading_.peaks.engine = std::max(reading_.peaks.engine, now.engine);
  reading_.peaks.torch = std::max(reading_.peaks.torch, now.torch);
  if (now.total() > reading_.peak.total()) reading_.peak = now;
}

MeterReading MemoryMeter::reading() const {
  const std::lock_guard lock(mutex_);
  return reading_;
}

void MemoryMeter::reset_peak() {
  const std::lock_guard lock(mutex_);
  reading_.peak = reading_.peaks = reading_.now;
}

void MemoryMeter::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

int64_t MemoryMeter::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

void MemoryMeter::set_refusal(Refuse refuse) {
  const std::lock_guard lock(mutex_);
  refuse_ = std::move(refuse);
}

bool MemoryMeter::has_refusal() const {
  const std::lock_guard lock(mutex_);
  return refuse_ != nullptr;
}

std::string MemoryMeter::describe(const MemoryDemand& demand) {
  if (demand.bytes == 0) {
    return fmt::format("out of memory: {} are held, more than the limit of {}",
                       format_bytes(demand.now.total()), format_bytes(demand.limit));
  }
  const int64_t left = std::max<int64_t>(demand.limit - demand.now.total(), 0);
  return fmt::format("out of memory: {} are needed, but the limit of {} leaves {}",
                     format_bytes(demand.bytes), format_bytes(demand.limit), format_bytes(left));
}

Buffer metered(const std::shared_ptr<MemoryMeter>& meter, int64_t bytes,
               const std::function<Buffer()>& allocate) {
  if (meter == nullptr || bytes == 0) return allocate();
  // Counts the bytes before they are allocated, so that the meter checks the limit first. If the
  // allocation throws, the destructor subtracts the bytes.
  struct Counted {
    Counted(std::shared_ptr<MemoryMeter> by, int64_t taken) : meter(std::move(by)), bytes(taken) {
      meter->take(MemoryOwner::kEngine, bytes);
    }
    ~Counted() {
      // The buffer is freed first, so that the meter never counts fewer bytes than are allocated.
      buffer = Buffer();
      meter->give(MemoryOwner::kEngine, bytes);
    }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

    const std::shared_ptr<MemoryMeter> meter;
    const int64_t bytes;
    Buffer buffer;
  };
  auto counted = std::make_shared<Counted>(meter, bytes);  // shared: std::function copies
  counted->buffer = allocate();
  void* const data = counted->buffer.data();
  return {data, counted->buffer.bytes(),
          [counted = std::move(counted)](void*) mutable { counted.reset(); }};
}

}  // namespace fsdp

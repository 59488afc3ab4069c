#include "planner/meta_device.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "kernels/kernel_table.h"
#include "planner/time/timed_kernels.h"
#include "planner/time/timed_stream.h"
#include "runtime/span_log.h"

namespace fsdp {
namespace {

// A stream that does nothing. Every recorded event is already reached, so mark() returns null.
class MetaStream final : public Stream {
 public:
  MetaStream(const Device& device, bool is_inline) : Stream(device), is_inline_(is_inline) {}

  void synchronize() override {}
  void copy(void* /*to*/, const void* /*from*/, int64_t /*bytes*/) override {}
  // Returns zeros: the engine may branch on values that it reads, so they must be defined.
  void read(void* to, const void* /*from*/, int64_t bytes) override {
    std::memset(to, 0, static_cast<size_t>(bytes));
  }
  bool is_inline() const override { return is_inline_; }
  void call(std::function<void()> on_host) override { on_host(); }
  void tell_time(std::function<void(int64_t ns)> tell) override { tell(span_clock_ns()); }

 protected:
  std::shared_ptr<EventMark> mark(CodePlace /*place*/) override { return nullptr; }
  void wait_for(const std::shared_ptr<EventMark>& /*mark*/, CodePlace /*place*/) override {}

 private:
  const bool is_inline_;
};

// Returns an address in the upper half of the address space, which belongs to the operating system.
// An atomic counter makes addresses distinct across all devices of a process.
void* address_without_memory(int64_t bytes) {
  static std::atomic<uint64_t> next{uint64_t{1} << 63};
  constexpr uint64_t kAlignment = 4096;
  // At least one byte after each buffer is unused, so the end of a buffer is in no other buffer.
  const uint64_t taken = (static_cast<uint64_t>(bytes) + kAlignment) / kAlignment * kAlignment;
  return reinterpret_cast<void*>(next.fetch_add(taken, std::memory_order_relaxed));
}

// Returns zeroed memory that the host may access. The system allocates a page only when it is
// written. MAP_NORESERVE allows a plan to exceed this machine's memory.
Buffer untouched_zeros(int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw DeviceError({.what = "cannot reserve address space for " + format_bytes(bytes),
                       .where = "host memory of a plan",
                       .hint = "raise the limit of the address space (ulimit -v)"});
  }
  return {data, bytes, [bytes](void* mapped) { munmap(mapped, static_cast<size_t>(bytes)); }};
}

template <class... Arguments>
void nothing(Arguments...) {}

const kernels::KernelTable& kernels_that_do_nothing() {
  static const kernels::KernelTable kTable{
      .accumulate = nothing,
      .accumulate_strided = nothing,
      .cast_pack = nothing,
      .cast_pack_strided = nothing,
      .clip_coefficient = nothing,
      .count_steps = nothing,
      .digest = nothing,
      .fill_nan = nothing,
      .fill_zero = nothing,
      .grad_norm = nothing,
      .mark_time = nothing,
      // The engine allocates a buffer of the size that the CPU kernel needs.
      .norm_scratch_bytes = kernels::cpu_kernels().norm_scratch_bytes,
      .pause_since = nothing,
      .reduce = nothing,
      .sum_squares = nothing,
      .trust_ratios = nothing,
      .update = nothing,
      .update_blocks = nothing,
  };
  return kTable;
}

StreamUse use_of(std::string_view name) {
  if (name == "fsdp-gather") return StreamUse::kGather;
  if (name == "fsdp-reduce") return StreamUse::kReduce;
  return name == "upload" || name == "download" ? StreamUse::kTransfer : StreamUse::kOther;
}

// `clock` may be null.
std::unique_ptr<Stream> stream_of(const Device& device, StepClock* clock, StreamUse use,
                                  bool is_inline, bool is_host) {
  if (clock == nullptr) return std::make_unique<MetaStream>(device, is_inline);
  return std::make_unique<TimedStream>(device, *clock, use, is_inline, is_host);
}

}  // namespace

MetaDevice::MetaDevice(bool compute_is_inline, StepClock* clock)
    : MetaDevice(compute_is_inline, clock, /*is_host=*/false) {}

MetaDevice::MetaDevice(bool compute_is_inline, StepClock* clock, bool is_host)
    : clock_(clock),
      is_host_(is_host),
      compute_(stream_of(*this, clock, is_host ? StreamUse::kOther : StreamUse::kCompute,
                         compute_is_inline, is_host)) {
  if (clock == nullptr || is_host) return;
  clock->set_compute(static_cast<const TimedStream&>(*compute_).number());
}

std::unique_ptr<MetaDevice> MetaDevice::host_with(StepClock& clock) {
  return std::unique_ptr<MetaDevice>(
      new MetaDevice(/*compute_is_inline=*/true, &clock, /*is_host=*/true));
}

MetaDevice::~MetaDevice() = default;

std::unique_ptr<Stream> MetaDevice::make_stream(const StreamOptions& options) const {
  return stream_of(*this, clock_, use_of(options.name), !options.runs_beside, is_host_);
}

Stream& MetaDevice::compute_stream(void* /*native*/) const { return *compute_; }

Buffer MetaDevice::allocate(int64_t bytes, MemoryKind kind) const {
  if (bytes == 0) return {};
  if (kind != MemoryKind::kDevice) return untouched_zeros(bytes);
  return {address_without_memory(bytes), bytes, nullptr};
}

const kernels::KernelTable* MetaDevice::kernels() const {
  return clock_ == nullptr ? &kernels_that_do_nothing() : &timed_kernels();
}

}  // namespace fsdp

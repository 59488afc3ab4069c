#include "planner/time/timed_stream.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace fsdp {
namespace {

constexpr double kNanoseconds = 1e9;

struct TimedEventMark final : EventMark {
  TimedEventMark(StepClock& step_clock, std::shared_ptr<TimedMark> mark)
      : clock(step_clock), point(std::move(mark)) {}
  void wait() override { clock.clock().wait_on_host(*point); }
  bool reached() override { return true; }

  StepClock& clock;
  const std::shared_ptr<TimedMark> point;  // shared with the queues that record it and wait for it
};

}  // namespace

TimedStream::TimedStream(const Device& device, StepClock& clock, StreamUse use, bool is_inline,
                         bool is_host)
    : Stream(device),
      clock_(clock),
      use_(use),
      is_inline_(is_inline),
      is_host_(is_host),
      number_(clock.clock().add_stream(is_inline, use == StreamUse::kCompute)) {}

TimedKind TimedStream::kind_of(TimedKind on_compute) const {
  switch (use_) {
    case StreamUse::kGather:
      return TimedKind::kGatherKernels;
    case StreamUse::kReduce:
      return TimedKind::kReduceKernels;
    case StreamUse::kTransfer:
      return TimedKind::kTransfer;
    case StreamUse::kCompute:
    case StreamUse::kOther:
      break;
  }
  return on_compute;
}

void TimedStream::issue(const TimedWork& work) { clock_.clock().issue(number_, work); }

void TimedStream::kernel(TimedKind kind, std::string_view name, double bytes) {
  const Rates& rates = clock_.rates();
  clock_.call_kernel();
  const auto measured = rates.kernels.find(std::string(name));
  const double rate = is_host_                          ? rates.host_copy
                      : measured != rates.kernels.end() ? measured->second
                                                        : rates.copy;
  issue({.kind = kind_of(kind), .ns = kNanoseconds * bytes / rate, .cores = clock_.cores_used()});
}

void TimedStream::synchronize() { clock_.clock().wait_on_host(*clock_.clock().mark(number_)); }

// On a GPU the streams of offload copy between the device and the host. All other copies are in
// one memory, which they read and write.
void TimedStream::copy(void* /*to*/, const void* /*from*/, int64_t bytes) {
  const auto moved = static_cast<double>(bytes);
  const double transfer = clock_.rates().transfer;
  if (use_ != StreamUse::kTransfer || transfer == 0)
    return kernel(TimedKind::kKernels, {}, 2 * moved);
  clock_.call_kernel();
  issue({.kind = TimedKind::kTransfer, .ns = kNanoseconds * moved / transfer});
}

// Returns zeros: the engine may branch on values that it reads, so they must be defined.
void TimedStream::read(void* to, const void* /*from*/, int64_t bytes) {
  std::memset(to, 0, static_cast<size_t>(bytes));
  synchronize();
}

void TimedStream::tell_time(std::function<void(int64_t ns)> tell) {
  clock_.clock().tell(number_, [tell = std::move(tell)](double ns) { tell(std::llround(ns)); });
}

std::shared_ptr<EventMark> TimedStream::mark(CodePlace /*place*/) {
  return std::make_shared<TimedEventMark>(clock_, clock_.clock().mark(number_));
}

void TimedStream::wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) {
  if (!mark) return;
  clock_.clock().wait(number_, static_cast<const TimedEventMark&>(*mark).point, place);
}

}  // namespace fsdp

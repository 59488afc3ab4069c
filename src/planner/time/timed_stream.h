// A stream of a device without memory whose work takes virtual time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "planner/time/step_clock.h"
#include "runtime/stream.h"

namespace fsdp {

// The use of a stream, which decides the kind of its kernels.
enum class StreamUse : uint8_t { kCompute, kGather, kReduce, kTransfer, kOther };

// A stream that moves no bytes. Each work has a duration of VirtualClock. Functions of call() run
// at once, and events count as reached, so the engine makes the same decisions as on a stream
// without time. tell_time tells virtual time, so a trace shows the planned step.
class TimedStream final : public Stream {
 public:
  // `is_host`: the stream runs kernels of the host, for a device whose memory is not the host's.
  // Requires: the clock outlives the stream.
  TimedStream(const Device& device, StepClock& clock, StreamUse use, bool is_inline, bool is_host);

  // Issues a kernel of the engine that reads and writes `bytes` bytes. `name` is one of
  // kTimedKernels or empty. `kind` is used on the compute stream and on the host; on another stream
  // the kernel has the kind of the stream.
  void kernel(TimedKind kind, std::string_view name, double bytes);
  void issue(const TimedWork& work);
  int number() const { return number_; }

  void synchronize() override;
  void copy(void* to, const void* from, int64_t bytes) override;
  void read(void* to, const void* from, int64_t bytes) override;
  bool is_inline() const override { return is_inline_; }
  void call(std::function<void()> on_host) override { on_host(); }
  void tell_time(std::function<void(int64_t ns)> tell) override;

 protected:
  std::shared_ptr<EventMark> mark(CodePlace place) override;
  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) override;

 private:
  TimedKind kind_of(TimedKind on_compute) const;

  StepClock& clock_;
  const StreamUse use_;
  const bool is_inline_;
  const bool is_host_;
  const int number_;
};

}  // namespace fsdp

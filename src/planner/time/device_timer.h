// Measures how long work on a device takes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/played_operators.h>
#include <time.h>

namespace fsdp {

// Returns the time of a clock in nanoseconds.
inline double now_ns(CpuClock clock) {
  timespec time{};
  clock_gettime(clock == CpuClock::kWall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// Measures by a clock on the CPU, and by two events of the current stream on a GPU.
class DeviceTimer {
 public:
  DeviceTimer(c10::Device device, CpuClock clock) : device_(device), clock_(clock) {}

  // Calls `work` and returns the nanoseconds that its work on the device takes. Blocks until this
  // work is done.
  template <class Work>
  double time(const Work& work) const {
    if (device_.is_cpu()) {
      const double begin = now_ns(clock_);
      work();
      return now_ns(clock_) - begin;
    }
    const c10::impl::VirtualGuardImpl guard(device_.type());
    c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    begin.record(guard.getStream(device_));
    work();
    end.record(guard.getStream(device_));
    end.synchronize();
    return 1e6 * begin.elapsedTime(end);
  }

 private:
  const c10::Device device_;
  const CpuClock clock_;
};

}  // namespace fsdp

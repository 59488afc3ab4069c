// A device that runs on the host and finds errors which otherwise appear only on another device.
// Its memory is guarded (guarded_memory.h): only work of its streams may access it. Every kernel,
// and every collective of a checked mesh, reports the bytes that it accesses to the race check,
// which finds unordered work.
#pragma once

#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/cpu/cpu_stream.h"
#include "simulator/race_check.h"

namespace fsdp::testing {

// A stream of the host with a number in the race check.
class CheckedStream : public CpuStream {
 public:
  CheckedStream(const Device& device, RaceCheck& check, std::string_view name, bool runs_beside);
  ~CheckedStream() override;

  void touch(std::string_view what, const std::vector<TouchedBytes>& bytes) {
    check_.work(number_, what, bytes);
  }
  // Issue work that opens or closes guarded memory. Work issued between the two calls may access
  // it.
  void open_memory();
  void close_memory();

  void synchronize() override {
    inner_->synchronize();
    check_.host_waits(check_.mark(number_));
  }
  void read(void* to, const void* from, int64_t bytes) override;
  void copy(void* to, const void* from, int64_t bytes) override;
  bool is_inline() const override { return inner_->is_inline(); }
  void call(std::function<void()> on_host) override { inner_->call(std::move(on_host)); }

 private:
  std::shared_ptr<EventMark> mark(CodePlace place) override;
  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) override;

  RaceCheck& check_;
  const int number_;
  std::atomic<int> open_ = 0;
  std::unique_ptr<Stream> inner_;
};

// A scope in which work is issued to a stream. If the stream is a checked one, the race check
// records the bytes that the work accesses, and guarded memory is open for this work.
class CheckedWork {
 public:
  CheckedWork(Stream& stream, std::string_view what, const std::vector<TouchedBytes>& bytes);
  ~CheckedWork();
  CheckedWork(const CheckedWork&) = delete;
  CheckedWork& operator=(const CheckedWork&) = delete;

 private:
  CheckedStream* const stream_;
};

// Returns `memory` and registers it with the race check until it is released.
Buffer known_to(const std::shared_ptr<RaceCheck>& check, Buffer memory);

class CheckedDevice : public Device {
 public:
  CheckedDevice();

  RaceCheck& check() const { return *check_; }
  const std::shared_ptr<RaceCheck>& shared_check() const { return check_; }

  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  Stream& compute_stream(void* /*native*/ = nullptr) const override { return *compute_; }
  // Reports work on the compute stream that is not done by a kernel.
  void tell(std::string_view what, const std::vector<TouchedBytes>& bytes) const {
    compute_->touch(what, bytes);
  }
  Buffer allocate(int64_t bytes, MemoryKind kind) const override;
  const kernels::KernelTable* kernels() const override;

 private:
  const std::shared_ptr<RaceCheck> check_;  // shared with buffers that outlive the device
  std::unique_ptr<CheckedStream> compute_;
};

}  // namespace fsdp::testing

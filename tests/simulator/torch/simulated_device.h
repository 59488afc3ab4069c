// The library's CUDA device on a simulated GPU. LibTorch's CPU operators use its memory as their
// own, and access it as work of the rank's compute stream.
#pragma once

#include <fsdp/mesh.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "base/code_place.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::testing {

// A deliberate error at one place of the engine.
enum class Mutation : uint8_t {
  kNone,
  kWaitLeftOut,
  kRecordLeftOut,  // the event keeps the mark of its last record
  kRecordEarly,    // the event gets an earlier mark of the stream
};

struct MutatedPlace {
  Mutation mutation = Mutation::kNone;
  std::string place{};  // for example "engine_pass.cpp:40", as SimulatedDevice::waits returns it
  int marks_early = 1;  // for kRecordEarly: a collective makes up to three
};

class SimulatedDevice : public CudaDevice {
 public:
  explicit SimulatedDevice(sim::SimulatedGpu& gpu, int ordinal = 0);

  // Returns LibTorch's name for the device. Its tensors are on the CPU.
  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  // Returns the stream to which the calling thread is bound.
  // Errors: std::logic_error if the thread is bound to no stream.
  Stream& compute_stream(void* native = nullptr) const override;

  sim::SimulatedGpu& gpu() const { return gpu_; }

  // Makes the error `mutated` occur from now on.
  void mutate(MutatedPlace mutated);
  // Return the places at which streams have waited and recorded until now.
  std::set<std::string> waits() const;
  std::set<std::string> records() const;

 private:
  friend class SimulatedStreamOfTest;
  bool is_mutated(Mutation mutation, const CodePlace& place) const;

  sim::SimulatedGpu& gpu_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> waits_, records_;
  MutatedPlace mutated_;
};

// A stream of the simulated device for LibTorch's operators in the calling thread. It becomes the
// thread's current stream if the thread has none. Reports name it after its owner: "compute of rank
// 0".
class ComputeStreamOfThread {
 public:
  // If `is_default`, this is CUDA's default stream, which exists without being created.
  ComputeStreamOfThread(const SimulatedDevice& device, std::string owner, bool is_default);
  ~ComputeStreamOfThread();
  ComputeStreamOfThread(const ComputeStreamOfThread&) = delete;
  ComputeStreamOfThread& operator=(const ComputeStreamOfThread&) = delete;

  cudaStream_t handle() const;
  int device() const { return device_; }
  const std::string& owner() const { return owner_; }

  // Returns the calling thread's current stream, or null.
  static const ComputeStreamOfThread* current();

 private:
  friend class SimulatedDevice;
  const std::string owner_;
  const int device_;
  std::unique_ptr<CudaStream> stream_;
};

// A scope in which another stream is LibTorch's current stream in the calling thread.
class ComputeStreamGuard {
 public:
  explicit ComputeStreamGuard(const ComputeStreamOfThread& now);
  ~ComputeStreamGuard();
  ComputeStreamGuard(const ComputeStreamGuard&) = delete;
  ComputeStreamGuard& operator=(const ComputeStreamGuard&) = delete;

 private:
  const ComputeStreamOfThread* const before_;
};

}  // namespace fsdp::testing

// The CUDA device of the library on a simulated GPU, as LibTorch's operators of the CPU see it:
// its memory is memory of theirs, which they touch as work of the rank's compute stream.
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

// What is wrong on purpose at one place of the engine.
enum class Mutation : uint8_t {
  kNone,
  kWaitLeftOut,
  kRecordLeftOut,  // the event keeps its mark: of the use before
  kRecordEarly,    // the event has a mark that the stream was given before
};

struct MutatedPlace {
  Mutation mutation = Mutation::kNone;
  std::string place{};  // "engine_pass.cpp:40", as SimulatedDevice::waits has it
  int marks_early = 1;  // of kRecordEarly: a collective has up to three of its own
};

class SimulatedDevice : public CudaDevice {
 public:
  explicit SimulatedDevice(sim::SimulatedGpu& gpu, int ordinal = 0);

  // LibTorch's: tensors are the CPU's.
  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override;
  // The one that the calling thread is bound to.
  // Errors: std::logic_error in a thread that is bound to none.
  Stream& compute_stream(void* native = nullptr) const override;

  sim::SimulatedGpu& gpu() const { return gpu_; }

  // From now on.
  void mutate(MutatedPlace mutated);
  // Where streams have waited and recorded so far.
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

// A stream of the simulated device that LibTorch's operators of the calling thread run on: its
// current one, if it has none yet. `owner` is whose it is: reports tell of "compute of rank 0".
class ComputeStreamOfThread {
 public:
  // `is_default`: CUDA's default stream, which is not made but there.
  ComputeStreamOfThread(const SimulatedDevice& device, std::string owner, bool is_default);
  ~ComputeStreamOfThread();
  ComputeStreamOfThread(const ComputeStreamOfThread&) = delete;
  ComputeStreamOfThread& operator=(const ComputeStreamOfThread&) = delete;

  cudaStream_t handle() const;
  const std::string& owner() const { return owner_; }

  // Of the calling thread; null: none.
  static const ComputeStreamOfThread* current();

 private:
  friend class SimulatedDevice;
  const std::string owner_;
  std::unique_ptr<CudaStream> stream_;
};

// Another stream of the calling thread is LibTorch's current one while this lives.
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

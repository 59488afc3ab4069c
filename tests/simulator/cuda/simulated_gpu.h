// The GPUs of a test. While the object exists, the process's CUDA runtime is the simulated one.
//
// Incorrect calls of the runtime, errors in kernels and unordered work become reports. If a test
// does not take the reports, the destructor of the GPU fails the test:
//
//   SimulatedGpu gpu({.seed = 3});
//   const CudaDevice device(0, kernels::cuda::kernel_table());
//   ...
//   CHECK(gpu.take_reports() == std::vector<std::string>{});
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/cuda/simulation.h"

namespace fsdp::testing::sim {

// Thread-safe. At most one object exists at a time. Its destructor ends all objects that the
// runtime has made. Later calls return cudaErrorNoDevice.
class SimulatedGpu {
 public:
  explicit SimulatedGpu(const SimulationOptions& options = {});
  ~SimulatedGpu();
  SimulatedGpu(const SimulatedGpu&) = delete;
  SimulatedGpu& operator=(const SimulatedGpu&) = delete;

  // Runs all queued work, then returns and clears the reports.
  std::vector<std::string> take_reports();

  // FaultScript describes this function.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  void choose(FaultScript::Choice choice);
  void leave_out(std::string_view name, int64_t n) { fail(name, n, cudaSuccess); }
  int64_t calls(std::string_view name) const;
  int64_t all_calls() const;

  // Returns the names of objects that were created and not released: memory, streams and events.
  std::vector<std::string> left() const;

  // Returns how often the host waited for the device, by the function that waited.
  std::map<std::string, int64_t> host_waits() const;
  // Returns the time of the calling thread's clock. SimulationOptions::host_costs advance it.
  uint64_t host_ns() const;
  // Returns the devices that have a context.
  std::set<int> contexts() const;
  // Returns the launches that have run so far.
  std::vector<LaunchRecord> launches() const;

  // Allows or refuses use of the default stream. It is an ordinary stream, not ordered with any
  // other stream.
  void allow_default_stream(bool allowed);
  // Runs only the first and the last `blocks` blocks of a launch that has more than twice as many.
  // If `blocks` is 0, runs all blocks.
  void run_only_edges(uint64_t blocks);
  // Returns zeroed memory of the first device. Only pages that are accessed use host memory. The
  // host may access it. Errors: DeviceError if no address range of this size is free.
  void* sparse_memory(int64_t bytes);
  // Refuses later writes to this allocation. Reads of it conflict with nothing and are not
  // recorded, so that a launch may read all of a very large allocation.
  void only_read(const void* begin);
  void name_memory(const void* begin, std::string name);
  void name_stream(cudaStream_t stream, std::string name);
  // Adds a label to the operation that was issued last to the stream; see is_ordered.
  void label(cudaStream_t stream, std::string_view name);
  // Returns true if one of the two operations ends before the other starts, for any speed of the
  // streams. Each argument is a label, or "NAME #N on STREAM": the N-th operation of that name on
  // that stream, from 1. Errors: InvalidArgument, with a list of all known operations, if one is
  // unknown.
  bool is_ordered(std::string_view one, std::string_view other) const;
  bool happens_before(std::string_view first, std::string_view then) const;

  // Returns the simulation. Other simulated libraries, such as NCCL, use it.
  Simulation& simulation() const { return *simulation_; }

 private:
  const std::unique_ptr<Simulation> simulation_;
};

}  // namespace fsdp::testing::sim

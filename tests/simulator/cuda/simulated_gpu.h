// A test's GPUs: while the object lives, the process's CUDA runtime is the simulated one.
//
// Wrong calls of the runtime, errors in kernels and unordered work are reports. Reports that a test
// has not taken fail it when the GPU is destroyed:
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

// Thread-safe. At most one exists at a time. Objects that the runtime has made end with it: later
// calls return cudaErrorNoDevice.
class SimulatedGpu {
 public:
  explicit SimulatedGpu(const SimulationOptions& options = {});
  ~SimulatedGpu();
  SimulatedGpu(const SimulatedGpu&) = delete;
  SimulatedGpu& operator=(const SimulatedGpu&) = delete;

  // Runs all queued work, then returns and clears the reports.
  std::vector<std::string> take_reports();

  // See FaultScript.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  void choose(FaultScript::Choice choice);
  void leave_out(std::string_view name, int64_t n) { fail(name, n, cudaSuccess); }
  int64_t calls(std::string_view name) const;
  int64_t all_calls() const;

  // Returns the names of objects that were made and not released: memory, streams and events.
  std::vector<std::string> left() const;

  // Returns the number of the host's waits for the device, by the call that waited.
  std::map<std::string, int64_t> host_waits() const;
  // Returns the calling thread's clock, which SimulationOptions::host_costs advance.
  uint64_t host_ns() const;
  // Returns the devices that have a context.
  std::set<int> contexts() const;
  // Returns the launches that have run so far.
  std::vector<LaunchRecord> launches() const;

  // Allows the default stream. It is an ordinary stream, and is ordered with no other.
  void allow_default_stream(bool allowed);
  // Runs only the first and the last `blocks` blocks of launches with more than twice as many; 0:
  // all.
  void run_only_edges(uint64_t blocks);
  // Returns zeroed memory of the first device; only accessed pages take host memory. The host may
  // access it. Errors: DeviceError if there is no such address range.
  void* sparse_memory(int64_t bytes);
  // Refuses writes to this allocation from now on. Reads of it are not recorded, so that a launch
  // may read all of a huge one; they conflict with nothing.
  void only_read(const void* begin);
  void name_memory(const void* begin, std::string name);
  void name_stream(cudaStream_t stream, std::string name);
  // Gives the stream's last issued operation this name; see is_ordered.
  void label(cudaStream_t stream, std::string_view name);
  // Returns true if one of the two operations ends before the other starts, at any speed of the
  // streams. Each is a label, or "NAME #N on STREAM": the N-th operation of that name there, from
  // 1. Errors: InvalidArgument with all known operations, if one is unknown.
  bool is_ordered(std::string_view one, std::string_view other) const;
  bool happens_before(std::string_view first, std::string_view then) const;

  // For other simulated libraries beside the runtime.
  Simulation& simulation() const { return *simulation_; }

 private:
  const std::unique_ptr<Simulation> simulation_;
};

}  // namespace fsdp::testing::sim

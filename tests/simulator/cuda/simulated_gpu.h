// A test's GPUs: while it lives, the CUDA runtime of the process is the simulated one.
//
// What the runtime, the kernels or the order of work do wrong is a report. Reports that a test has
// not taken fail it when the GPU goes:
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

// Thread-safe. One at a time. What was made by calls to the runtime ends with it: later calls give
// cudaErrorNoDevice.
class SimulatedGpu {
 public:
  explicit SimulatedGpu(const SimulationOptions& options = {});
  ~SimulatedGpu();
  SimulatedGpu(const SimulatedGpu&) = delete;
  SimulatedGpu& operator=(const SimulatedGpu&) = delete;

  // All so far, which are forgotten then. Queued work is done first.
  std::vector<std::string> take_reports();

  // See FaultScript.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  void choose(FaultScript::Choice choice);
  void leave_out(std::string_view name, int64_t n) { fail(name, n, cudaSuccess); }
  int64_t calls(std::string_view name) const;
  int64_t all_calls() const;

  // What was made and has not been given back: memory, streams and events, each by its name.
  std::vector<std::string> left() const;

  // How often the host waited for the device, by what made it wait.
  std::map<std::string, int64_t> host_waits() const;
  // Returns the calling thread's clock, which SimulationOptions::host_costs advance.
  uint64_t host_ns() const;
  // Returns the devices that have a context.
  std::set<int> contexts() const;
  // Launches that have run so far.
  std::vector<LaunchRecord> launches() const;

  // The default stream is an ordinary one, which orders with no other.
  void allow_default_stream(bool allowed);
  // Launches of more than twice as many blocks run their first and last ones alone; 0: all.
  void run_only_edges(uint64_t blocks);
  // Zeroed memory of the first device, of which only what is touched takes memory of the host's.
  // The host may touch it. Errors: DeviceError if there is no room for so many addresses.
  void* sparse_memory(int64_t bytes);
  // Refuses writes to this allocation from now on. Reads of it are not recorded, so that a launch
  // may read all of a huge one; they conflict with nothing.
  void only_read(const void* begin);
  void name_memory(const void* begin, std::string name);
  void name_stream(cudaStream_t stream, std::string name);
  // The last operation that was issued to the stream is called so; see is_ordered.
  void label(cudaStream_t stream, std::string_view name);
  // Whether one of two operations is over before the other starts, whatever the streams' speeds.
  // Each is a label, or "NAME #N on STREAM": the N-th operation of that name there, from 1.
  // Errors: InvalidArgument with all that there are, if one is not known.
  bool is_ordered(std::string_view one, std::string_view other) const;
  bool happens_before(std::string_view first, std::string_view then) const;

  // For what else is simulated beside the runtime.
  Simulation& simulation() const { return *simulation_; }

 private:
  const std::unique_ptr<Simulation> simulation_;
};

}  // namespace fsdp::testing::sim

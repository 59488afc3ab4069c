// What the simulated CUDA runtime knows: one at a time in the process, made by SimulatedGpu.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/cuda/access_history.h"
#include "simulator/cuda/call_rules.h"
#include "simulator/cuda/fault_script.h"
#include "simulator/cuda/gpu_memory.h"
#include "simulator/cuda/operation_log.h"
#include "simulator/cuda/stream_queues.h"
#include "simulator/ptx/launch.h"

namespace fsdp::testing::sim {

struct SimulationOptions {
  uint32_t seed = 1;  // of the schedule, and of the order of blocks and warps
  Schedule schedule = Schedule::kRandom;
  int devices = 1;
  int64_t bytes_each = int64_t{256} << 20;
  int multiprocessors = 3;  // of a device: what grids are made for
  // All devices are those of one process, in which a call that allocates, frees or loads code may
  // wait for every device. Else each device is a process's.
  bool one_process = false;
  // Threads that have chosen no device are on a spare one, beyond `devices`, where a context is a
  // report: it would be another process's GPU. False: they are on device 0, as CUDA's are.
  bool spare_default = false;
  HostCosts host_costs{};
};

// What the runtime keeps for each thread of the host.
struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  Clock clock;          // of the work that the thread has waited for
  uint64_t now_ns = 0;  // when the last of it was done, and what its calls have cost since
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

struct SimulatedEvent {
  int device = 0;
  bool timed = false;
  bool destroyed = false;
  std::shared_ptr<const Point> last;  // null: never recorded
};

// A call that CUDA refuses: the error that it returns, and why, which is a report.
struct Refusal : std::runtime_error {
  Refusal(cudaError_t its_code, const std::string& why) : runtime_error(why), code(its_code) {}
  cudaError_t code;
};

// Of one launch that has run.
struct LaunchRecord {
  std::string kernel;
  ptx::LaunchReport report;
};

// Used under runtime_mutex().
class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);

  // [Note: what a call does]
  // Every function of the runtime that can fail goes through here: it is counted, fails if the
  // script says so, does nothing on a device that is lost, and leaves its error for
  // cudaGetLastError. Only then does the body run. What it throws is a report.
  cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

  // Of the calling thread. A thread that is new has seen what all before it have, who is thought to
  // have made it; what one has seen that ends goes to all, who are thought to have joined it.
  HostThread& host();
  void end_host(uint64_t number);
  // Advances the calling thread's clock.
  void spend(uint64_t ns) { host().now_ns += ns; }
  // Makes a context on the thread's current device if there is none. `name` is the call.
  void need_context(std::string_view name);
  // Devices that have one.
  const std::set<int>& contexts() const { return contexts_; }
  // The calling thread captures a graph from the stream. Work for the graph is refused.
  void begin_capture(SimulatedStream& stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(SimulatedStream& stream);
  // What does not come back by itself: the device's, or else what the thread's last call left.
  cudaError_t last_error(bool forget);

  // Errors: Refusal for a handle that is none of ours or was destroyed, and for the default stream
  //   unless it is allowed.
  SimulatedStream& stream(cudaStream_t handle);
  SimulatedEvent& event(cudaEvent_t handle);
  SimulatedStream& add_stream();
  SimulatedEvent& add_event(bool timed);

  // Queues `run` as work that is in order behind what the stream and the calling thread have seen.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run);
  // The same for another thread, as it was.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run,
             const HostThread& by);
  // `launch` as ptx::run takes it, with a seed drawn from the simulation's.
  void launch(SimulatedStream& stream, std::string name, ptx::Launch launch);
  // Work that the calling thread does now, behind all that the stream has to do first.
  const Operation& begin_at_once(SimulatedStream& stream, std::string name);
  // Within an operation: it reads or writes these bytes of device or pinned memory.
  // Errors: ptx::Objection if they are not there, or if nobody has written what `read` reads.
  void read(const Operation& operation, const void* begin, int64_t bytes);
  void touch(const Operation& operation, const void* begin, int64_t bytes, bool writes);
  void record(SimulatedEvent& event, SimulatedStream& stream);
  void wait(SimulatedStream& stream, const SimulatedEvent& event);
  // Where the stream is once it has done what it was given.
  std::shared_ptr<const Point> point_of(SimulatedStream& stream, const HostThread& by);
  void wait(SimulatedStream& stream, std::shared_ptr<const Point> point, const HostThread& by);
  // To be told when a point that was held is reached, or somebody else may go on; waiting gives the
  // runtime's mutex away.
  std::condition_variable_any& changed() { return changed_; }
  // The calling thread waits; `kind` is what made it.
  void host_waits_for(SimulatedStream& stream, std::string_view kind);
  void host_waits_for(const Point& point, std::string_view kind);
  void host_waits_for_device(int device, std::string_view kind);
  // It has seen, without waiting, that this is over since then.
  void host_saw(const Clock& clock, uint64_t ns);

  // [Note: calls that wait for peers]
  // Calls that allocate or free memory or load code may wait for all devices of the process (which,
  // and when, depends on the driver). If a peer's device runs a collective in which the calling
  // thread's device has no part yet, that never ends: the calling thread would issue it. `waits`
  // returns which collective of a peer waits for the device; empty: none.
  void watch_peers(std::function<std::string(int device)> waits) { peer_waits_ = std::move(waits); }
  // Reports such a call, and returns true. Nothing where each device is a process's.
  bool may_wait_for_peers(std::string_view call);
  // The same for the code of this kernel, the first time on the device.
  void load(const void* kernel, std::string_view call);
  // cudaFreeHost waits for all devices of the process.
  void host_waits_for_process(std::string_view kind);

  void report(std::string text) { reports_.push_back(std::move(text)); }
  // From now on nothing runs there, and every call gives the error.
  // Of collectives that never end, until they are aborted.
  void count_endless(int device, int by) { endless_[device] += by; }
  bool works_endlessly(int device) const {
    const auto found = endless_.find(device);
    return found != endless_.end() && found->second > 0;
  }
  void lose_device(int device, cudaError_t code);
  bool is_lost(int device) const { return lost_[static_cast<size_t>(device)] != cudaSuccess; }

  // What was made and not given back, by name.
  std::vector<std::string> left() const;

  const SimulationOptions& options() const { return options_; }
  GpuMemory& memory() { return memory_; }
  StreamQueues& queues() { return queues_; }
  OperationLog& log() { return log_; }
  FaultScript& faults() { return faults_; }
  std::vector<LaunchRecord>& launches() { return launches_; }
  std::vector<std::string>& reports() { return reports_; }
  std::map<std::string, int64_t>& host_waits() { return host_waits_; }
  // Launches of more than twice as many blocks run their first and last ones; 0: all run whole.
  void run_only_edges(uint64_t blocks) { edge_blocks_ = blocks; }
  void allow_default_stream(bool allowed) { default_stream_allowed_ = allowed; }

 private:
  SimulatedStream& default_stream();
  cudaError_t answer(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);
  int device_count() const { return options_.devices + (options_.spare_default ? 1 : 0); }
  // Errors: Refusal, and the capture is invalid.
  void require_safe_for_captures();
  ptx::DeviceMemory& memory_at(const Operation& operation, const void* begin);
  void note(const Operation& operation, const ptx::ByteRange& bytes, bool writes);
  // Until it is: what is held is somebody else's to end.
  void wait_until(const std::function<bool()>& is_done);
  void run_work(const Operation& operation, const std::function<void(const Operation&)>& run);

  const SimulationOptions options_;
  GpuMemory memory_;
  StreamQueues queues_;
  OperationLog log_;
  FaultScript faults_;
  AccessHistory history_;
  std::set<std::string> conflicts_;  // of which kinds there was a report
  std::condition_variable_any changed_;
  std::map<uint64_t, HostThread> hosts_;
  std::set<int> contexts_;
  struct Capture {
    uint64_t host = 0;
    cudaStreamCaptureMode mode{};
    bool is_valid = true;
  };
  std::map<int, Capture> captures_;                // by stream
  Clock ended_;                                    // what threads that are gone have seen
  std::vector<cudaError_t> lost_;                  // by device
  std::map<int, int> endless_;                     // collectives, by device
  std::vector<SimulatedStream*> default_streams_;  // by device; null: not used yet
  std::map<const void*, std::unique_ptr<SimulatedEvent>> events_;  // by handle; those gone, too
  std::vector<LaunchRecord> launches_;
  std::vector<std::string> reports_;
  std::map<std::string, int64_t> host_waits_;
  std::function<std::string(int device)> peer_waits_;
  std::set<std::pair<int, const void*>> loaded_;  // kernels, by device
  bool default_stream_allowed_ = false;
  uint64_t edge_blocks_ = 0;
};

// Of everything here, and of the pointer below.
std::mutex& runtime_mutex();
// Null: no simulated GPU is there, and every call gives cudaErrorNoDevice.
Simulation*& current_simulation();

// For the functions of the runtime: Simulation::call of the current one.
cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

}  // namespace fsdp::testing::sim

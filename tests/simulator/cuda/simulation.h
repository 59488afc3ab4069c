// State of the simulated CUDA runtime. SimulatedGpu makes it, and the process has at most one.
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
  uint32_t seed = 1;  // seed of the schedule, and of the order of blocks and warps
  Schedule schedule = Schedule::kRandom;
  int devices = 1;
  int64_t bytes_each = int64_t{256} << 20;
  int multiprocessors = 3;  // per device; launches size their grids by it
  // All devices belong to one process, in which a call that allocates, frees or loads code may wait
  // for every device. Else each device belongs to its own process.
  bool one_process = false;
  // Threads that have not chosen a device are on a spare one, beyond `devices`, where a context is
  // a report: in a real job it would be another process's GPU. False: they are on device 0, as with
  // CUDA.
  bool spare_default = false;
  HostCosts host_costs{};
};

// The runtime's state of a host thread.
struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  Clock clock;          // the work that the thread has waited for
  uint64_t now_ns = 0;  // the end of the last of it, plus the cost of later calls
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

struct SimulatedEvent {
  int device = 0;
  bool timed = false;
  bool destroyed = false;
  std::shared_ptr<const Point> last;  // null: never recorded
};

// A call that CUDA refuses: the error code that it returns, and the reason, which is a report.
struct Refusal : std::runtime_error {
  Refusal(cudaError_t its_code, const std::string& why) : runtime_error(why), code(its_code) {}
  cudaError_t code;
};

// A launch that has run.
struct LaunchRecord {
  std::string kernel;
  ptx::LaunchReport report;
};

// Requires: runtime_mutex() is held.
class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);

  // [Note: what a call does]
  // Every function of the runtime that can fail passes through here. The call is counted, fails if
  // the script says so, does nothing on a lost device, and leaves its error for cudaGetLastError.
  // Only then does the body run. A Refusal of the body is a report.
  cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

  // Returns the calling thread's state. A new thread has seen all work that the existing threads
  // have seen, because one of them is assumed to have started it. When a thread ends, its knowledge
  // is passed to all, because one of them is assumed to have joined it.
  HostThread& host();
  void end_host(uint64_t number);
  // Advances the calling thread's clock.
  void spend(uint64_t ns) { host().now_ns += ns; }
  // Makes a context on the thread's current device if there is none. `name` is the call.
  void need_context(std::string_view name);
  // Returns the devices that have one.
  const std::set<int>& contexts() const { return contexts_; }
  // Starts a capture of the stream by the calling thread. Work for the graph is refused.
  void begin_capture(SimulatedStream& stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(SimulatedStream& stream);
  // Returns the thread's error: the device's if it is lost, else that of the thread's last failed
  // call.
  cudaError_t last_error(bool forget);

  // Errors: Refusal for an unknown or destroyed handle, and for the default stream unless it is
  // allowed.
  SimulatedStream& stream(cudaStream_t handle);
  SimulatedEvent& event(cudaEvent_t handle);
  SimulatedStream& add_stream();
  SimulatedEvent& add_event(bool timed);

  // Queues `run` as work, ordered after all work that the stream and the calling thread have seen.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run);
  // Does the same for another thread, whose state is `by`.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run,
             const HostThread& by);
  // Queues a launch. `launch` is as for ptx::run, with a seed drawn from the simulation's.
  void launch(SimulatedStream& stream, std::string name, ptx::Launch launch);
  // Runs all work of the stream, and then logs an operation that the calling thread performs
  // itself, now.
  const Operation& begin_at_once(SimulatedStream& stream, std::string name);
  // Within an operation: notes that it reads or writes these bytes of device or pinned memory.
  // Errors: ptx::Objection if the memory does not exist, or if `read` reads bytes without a value.
  void read(const Operation& operation, const void* begin, int64_t bytes);
  void touch(const Operation& operation, const void* begin, int64_t bytes, bool writes);
  void record(SimulatedEvent& event, SimulatedStream& stream);
  void wait(SimulatedStream& stream, const SimulatedEvent& event);
  // Returns the point that the stream reaches after all work issued so far.
  std::shared_ptr<const Point> point_of(SimulatedStream& stream, const HostThread& by);
  void wait(SimulatedStream& stream, std::shared_ptr<const Point> point, const HostThread& by);
  // Notified when a held point is reached, or when another thread may continue; waiting releases
  // the runtime's mutex.
  std::condition_variable_any& changed() { return changed_; }
  // Lets the calling thread wait; `kind` names the call.
  void host_waits_for(SimulatedStream& stream, std::string_view kind);
  void host_waits_for(const Point& point, std::string_view kind);
  void host_waits_for_device(int device, std::string_view kind);
  // The calling thread has learned, without waiting, that this work has ended.
  void host_saw(const Clock& clock, uint64_t ns);

  // [Note: calls that wait for peers]
  // Calls that allocate or free memory or load code may wait for all devices of the process; the
  // driver decides which, and when. If a peer's device runs a collective that waits for the calling
  // thread's device, the call never returns: this thread would issue the missing share. `waits`
  // returns the collective of a peer that waits for the device; empty: none.
  void watch_peers(std::function<std::string(int device)> waits) { peer_waits_ = std::move(waits); }
  // Reports such a call and returns true. Does nothing if each device belongs to its own process.
  bool may_wait_for_peers(std::string_view call);
  // Does the same for loading this kernel's code, the first time on the device.
  void load(const void* kernel, std::string_view call);
  // cudaFreeHost waits for all devices of the process.
  void host_waits_for_process(std::string_view kind);

  void report(std::string text) { reports_.push_back(std::move(text)); }
  // Counts collectives on the device that do not end until they are aborted.
  void count_endless(int device, int by) { endless_[device] += by; }
  bool works_endlessly(int device) const {
    const auto found = endless_.find(device);
    return found != endless_.end() && found->second > 0;
  }
  // From now on nothing runs on the device, and every call on it returns the error.
  void lose_device(int device, cudaError_t code);
  bool is_lost(int device) const { return lost_[static_cast<size_t>(device)] != cudaSuccess; }

  // Returns the names of objects that were made and not released.
  std::vector<std::string> left() const;

  const SimulationOptions& options() const { return options_; }
  GpuMemory& memory() { return memory_; }
  StreamQueues& queues() { return queues_; }
  OperationLog& log() { return log_; }
  FaultScript& faults() { return faults_; }
  std::vector<LaunchRecord>& launches() { return launches_; }
  std::vector<std::string>& reports() { return reports_; }
  std::map<std::string, int64_t>& host_waits() { return host_waits_; }
  // Runs only the first and the last `blocks` blocks of launches with more than twice as many; 0:
  // all.
  void run_only_edges(uint64_t blocks) { edge_blocks_ = blocks; }
  void allow_default_stream(bool allowed) { default_stream_allowed_ = allowed; }

 private:
  SimulatedStream& default_stream();
  cudaError_t answer(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);
  int device_count() const { return options_.devices + (options_.spare_default ? 1 : 0); }
  // Errors: Refusal; the capture is then invalid.
  void require_safe_for_captures();
  ptx::DeviceMemory& memory_at(const Operation& operation, const void* begin);
  void note(const Operation& operation, const ptx::ByteRange& bytes, bool writes);
  // Waits until `is_done` returns true; another thread may have to end a held point.
  void wait_until(const std::function<bool()>& is_done);
  void run_work(const Operation& operation, const std::function<void(const Operation&)>& run);

  const SimulationOptions options_;
  GpuMemory memory_;
  StreamQueues queues_;
  OperationLog log_;
  FaultScript faults_;
  AccessHistory history_;
  std::set<std::string> conflicts_;  // kinds that were reported already
  std::condition_variable_any changed_;
  std::map<uint64_t, HostThread> hosts_;
  std::set<int> contexts_;
  struct Capture {
    uint64_t host = 0;
    cudaStreamCaptureMode mode{};
    bool is_valid = true;
  };
  std::map<int, Capture> captures_;                // by stream
  Clock ended_;                                    // seen by threads that have ended
  std::vector<cudaError_t> lost_;                  // by device
  std::map<int, int> endless_;                     // collectives, by device
  std::vector<SimulatedStream*> default_streams_;  // by device; null: not used yet
  std::map<const void*, std::unique_ptr<SimulatedEvent>> events_;  // by handle; destroyed ones, too
  std::vector<LaunchRecord> launches_;
  std::vector<std::string> reports_;
  std::map<std::string, int64_t> host_waits_;
  std::function<std::string(int device)> peer_waits_;
  std::set<std::pair<int, const void*>> loaded_;  // kernels, by device
  bool default_stream_allowed_ = false;
  uint64_t edge_blocks_ = 0;
};

// Guards all simulation state, and the pointer below.
std::mutex& runtime_mutex();
// Null: there is no simulated GPU, and every call returns cudaErrorNoDevice.
Simulation*& current_simulation();

// Calls Simulation::call of the current simulation; for functions of the runtime.
cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

}  // namespace fsdp::testing::sim

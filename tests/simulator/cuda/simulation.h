// The state of the simulated CUDA runtime. SimulatedGpu creates it. The process has at most one.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  int multiprocessors = 3;  // number per device; launches size their grids by it
  // True: all devices belong to one process. A call that allocates, frees or loads code may then
  // wait for every device. False: each device belongs to its own process.
  bool one_process = false;
  // True: threads that have not chosen a device are on a spare device, which is not one of
  // `devices`. A context there becomes a report, because in a real job it would be on another
  // process's GPU. False: these threads are on device 0, as in CUDA.
  bool spare_default = false;
  HostCosts host_costs{};
};

// The runtime's state of a host thread.
struct HostThread {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  Clock clock;          // the work that the thread has waited for
  uint64_t now_ns = 0;  // when that work ended, plus the cost of later calls
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
};

struct SimulatedEvent {
  int device = 0;
  bool timed = false;
  bool destroyed = false;
  std::shared_ptr<const Point> last;  // null: never recorded
};

// A call that CUDA refuses: the error code that it returns, and the reason. The reason becomes a
// report.
struct Refusal : std::runtime_error {
  Refusal(cudaError_t its_code, const std::string& why) : runtime_error(why), code(its_code) {}
  cudaError_t code;
};

// A launch that has run.
struct LaunchRecord {
  std::string kernel;
  ptx::LaunchReport report;
};

// Requires: the caller holds runtime_mutex().
class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);

  // [Note: steps of a call]
  // Every function of the runtime that can fail calls this function. It counts the call. It returns
  // the script's error if the script selects the call, and the device's error if the device is
  // lost. Otherwise the body runs. cudaGetLastError returns the call's error afterwards. A Refusal
  // that the body throws becomes a report.
  cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

  // Returns the state of the calling thread. A new thread counts as having seen all work that the
  // existing threads have seen, because one of them is assumed to have started it. When a thread
  // ends, all threads count as having seen its work, because one of them is assumed to have joined
  // it.
  HostThread& host();
  void end_host(uint64_t number);
  // Advances the calling thread's clock.
  void spend(uint64_t ns) { host().now_ns += ns; }
  // Makes a context on the thread's current device if none exists. `name` is the name of the call.
  void need_context(std::string_view name);
  // Returns the devices that have a context.
  const std::set<int>& contexts() const { return contexts_; }
  // Starts a capture of the stream by the calling thread. Work for the captured graph is refused.
  void begin_capture(SimulatedStream& stream, cudaStreamCaptureMode mode);
  cudaError_t end_capture(SimulatedStream& stream);
  // Returns the device's error if the thread's device is lost. Otherwise returns the error of the
  // thread's last failed call.
  cudaError_t last_error(bool forget);

  // Returns the stream of a handle. The null handle is the default stream of `device`, which is the
  // thread's device if it is not given.
  // Errors: Refusal if the handle is unknown or destroyed, or if it is the default stream and that
  // is not allowed.
  SimulatedStream& stream(cudaStream_t handle, std::optional<int> device = {});
  SimulatedEvent& event(cudaEvent_t handle);
  SimulatedStream& add_stream();
  SimulatedEvent& add_event(bool timed);

  // Queues `run` as work. The work is ordered after all work that the stream and the calling thread
  // have seen.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run);
  // Queues `run` for another thread, whose state is `by`.
  void issue(SimulatedStream& stream, std::string name, std::function<void(const Operation&)> run,
             const HostThread& by);
  // Queues a launch. `launch` is an argument of ptx::run. Its seed is drawn from the simulation's
  // seed.
  void launch(SimulatedStream& stream, std::string name, ptx::Launch launch);
  // Runs all work of the stream, and then logs an operation that the calling thread performs itself
  // at once.
  const Operation& begin_at_once(SimulatedStream& stream, std::string name);
  // Record, during an operation, that it reads or writes these bytes of device or pinned memory.
  // Errors: ptx::Objection if the memory does not exist, or if `read` reads bytes without a value.
  void read(const Operation& operation, const void* begin, int64_t bytes);
  void touch(const Operation& operation, const void* begin, int64_t bytes, bool writes);
  void record(SimulatedEvent& event, SimulatedStream& stream);
  void wait(SimulatedStream& stream, const SimulatedEvent& event);
  // Returns a point that the stream reaches after all work that was issued until now.
  std::shared_ptr<const Point> point_of(SimulatedStream& stream, const HostThread& by);
  void wait(SimulatedStream& stream, std::shared_ptr<const Point> point, const HostThread& by);
  // Notified when a held point is reached, or when another thread may continue. A wait releases the
  // runtime's mutex.
  std::condition_variable_any& changed() { return changed_; }
  // Makes the calling thread wait for the stream. `kind` names the call.
  void host_waits_for(SimulatedStream& stream, std::string_view kind);
  void host_waits_for(const Point& point, std::string_view kind);
  void host_waits_for_device(int device, std::string_view kind);
  // Records that the calling thread has learned, without waiting, that this work has ended.
  void host_saw(const Clock& clock, uint64_t ns);

  // [Note: calls that wait for peers]
  // Calls that allocate memory, free memory or load code may wait for all devices of the process.
  // The driver decides which calls wait, and when. A peer's device may run a collective that waits
  // for the calling thread's device. Then the call never returns, because only this thread could
  // issue the missing share of the collective.
  // `waits` returns the peer's collective that waits for the device, or an empty string.
  void watch_peers(std::function<std::string(int device)> waits) { peer_waits_ = std::move(waits); }
  // Returns true and reports the call if it would never return. Returns false if each device
  // belongs to its own process.
  bool may_wait_for_peers(std::string_view call);
  // Calls may_wait_for_peers if this is the first use of the kernel on the device, because its
  // code is loaded then.
  void load(const void* kernel, std::string_view call);
  // cudaFreeHost waits for all devices of the process.
  void host_waits_for_process(std::string_view kind);

  void report(std::string text) { reports_.push_back(std::move(text)); }
  // Adds `by` to the number of collectives on the device that hang until they are aborted.
  void count_endless(int device, int by) { endless_[device] += by; }
  bool works_endlessly(int device) const {
    const auto found = endless_.find(device);
    return found != endless_.end() && found->second > 0;
  }
  // From now on, nothing runs on the device, and every call on it returns the error.
  void lose_device(int device, cudaError_t code);
  bool is_lost(int device) const { return lost_[static_cast<size_t>(device)] != cudaSuccess; }

  // Returns the names of objects that were created and not released.
  std::vector<std::string> left() const;

  const SimulationOptions& options() const { return options_; }
  GpuMemory& memory() { return memory_; }
  StreamQueues& queues() { return queues_; }
  OperationLog& log() { return log_; }
  FaultScript& faults() { return faults_; }
  std::vector<LaunchRecord>& launches() { return launches_; }
  std::vector<std::string>& reports() { return reports_; }
  std::map<std::string, int64_t>& host_waits() { return host_waits_; }
  // Runs only the first and the last `blocks` blocks of a launch that has more than twice as many.
  // If `blocks` is 0, runs all blocks.
  void run_only_edges(uint64_t blocks) { edge_blocks_ = blocks; }
  void allow_default_stream(bool allowed) { default_stream_allowed_ = allowed; }

 private:
  SimulatedStream& default_stream(int device);
  cudaError_t answer(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);
  int device_count() const { return options_.devices + (options_.spare_default ? 1 : 0); }
  // Errors: Refusal. The capture is invalid afterwards.
  void require_safe_for_captures();
  ptx::DeviceMemory& memory_at(const Operation& operation, const void* begin);
  void note(const Operation& operation, const ptx::ByteRange& bytes, bool writes);
  // Waits until `is_done` returns true. Another thread may have to report a held point as reached.
  void wait_until(const std::function<bool()>& is_done);
  void run_work(const Operation& operation, const std::function<void(const Operation&)>& run);

  const SimulationOptions options_;
  GpuMemory memory_;
  StreamQueues queues_;
  OperationLog log_;
  FaultScript faults_;
  AccessHistory history_;
  std::set<std::string> conflicts_;  // pairs that were reported already
  std::condition_variable_any changed_;
  std::map<uint64_t, HostThread> hosts_;
  std::set<int> contexts_;
  struct Capture {
    uint64_t host = 0;
    cudaStreamCaptureMode mode{};
    bool is_valid = true;
  };
  std::map<int, Capture> captures_;  // by stream
  Clock ended_;                      // work that ended threads have seen
  std::vector<cudaError_t> lost_;    // by device
  std::map<int, int> endless_;       // number of collectives that never end, by device
  std::vector<SimulatedStream*> default_streams_;                  // by device; null: not used yet
  std::map<const void*, std::unique_ptr<SimulatedEvent>> events_;  // by handle; destroyed ones, too
  std::vector<LaunchRecord> launches_;
  std::vector<std::string> reports_;
  std::map<std::string, int64_t> host_waits_;
  std::function<std::string(int device)> peer_waits_;
  std::set<std::pair<int, const void*>> loaded_;  // kernels, by device
  bool default_stream_allowed_ = false;
  uint64_t edge_blocks_ = 0;
};

// Guards all state of the simulation and the pointer that current_simulation returns.
std::mutex& runtime_mutex();
// If the pointer is null, no simulated GPU exists, and every call returns cudaErrorNoDevice.
Simulation*& current_simulation();

// Runs Simulation::call of the current simulation. The functions of the runtime call it.
cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body);

}  // namespace fsdp::testing::sim

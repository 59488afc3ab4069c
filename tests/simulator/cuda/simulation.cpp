#include "simulator/cuda/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "simulator/guarded_memory.h"

namespace fsdp::testing::sim {
namespace {

// A unique number of a host thread. It is needed because the system reuses thread ids.
class ThreadNumber {
 public:
  ThreadNumber() : number_(next()) {}
  ~ThreadNumber() {
    const std::lock_guard lock(runtime_mutex());
    if (Simulation* const simulation = current_simulation()) simulation->end_host(number_);
  }
  ThreadNumber(const ThreadNumber&) = delete;
  ThreadNumber& operator=(const ThreadNumber&) = delete;

  static uint64_t mine() {
    static thread_local const ThreadNumber number;
    return number.number_;
  }

 private:
  static uint64_t next() {
    static std::atomic<uint64_t> threads = 0;
    return ++threads;
  }
  const uint64_t number_;
};

}  // namespace

std::mutex& runtime_mutex() {
  static std::mutex mutex;
  return mutex;
}

Simulation*& current_simulation() {
  static Simulation* simulation = nullptr;
  return simulation;
}

cudaError_t call(std::string_view name, const std::function<cudaError_t(Simulation&)>& body) {
  const std::lock_guard lock(runtime_mutex());
  Simulation* const simulation = current_simulation();
  return simulation == nullptr ? cudaErrorNoDevice : simulation->call(name, body);
}

Simulation::Simulation(const SimulationOptions& options)
    : options_(options),
      memory_(device_count(), options.bytes_each),
      queues_(options.schedule, options.seed),
      lost_(static_cast<size_t>(device_count()), cudaSuccess),
      default_streams_(static_cast<size_t>(device_count()), nullptr) {}

cudaError_t Simulation::call(std::string_view name,
                             const std::function<cudaError_t(Simulation&)>& body) {
  const cudaError_t code = answer(name, body);
  if (code != cudaSuccess) host().last_error = code;
  return code;
}

cudaError_t Simulation::answer(std::string_view name,
                               const std::function<cudaError_t(Simulation&)>& body) {
  const cudaError_t& lost = lost_[static_cast<size_t>(host().device)];
  if (const auto scripted = faults_.next(name)) {
    if (is_sticky(*scripted)) lose_device(host().device, *scripted);
    return *scripted;
  }
  if (lost != cudaSuccess && !is_of_host(name)) return lost;
  try {
    if (needs_context(name)) need_context(name);
    if (is_unsafe_in_captures(name)) require_safe_for_captures();
    spend(cost_of(options_.host_costs, name));
    const cudaError_t code = body(*this);
    // If the call waited, it may have run the work that lost the device.
    return code == cudaSuccess && !is_of_host(name) ? lost : code;
  } catch (const Refusal& refusal) {
    report(fmt::format("{}: {}", name, refusal.what()));
    return refusal.code;
  }
}

HostThread& Simulation::host() {
  const auto [at, is_new] = hosts_.try_emplace(ThreadNumber::mine());
  Clock& clock = at->second.clock;
  if (is_new) {
    for (const auto& [number, other] : hosts_) clock.join(other.clock);
    if (options_.spare_default) at->second.device = options_.devices;
  }
  clock.join(ended_);
  return at->second;
}

void Simulation::need_context(std::string_view name) {
  const int device = host().device;
  const bool is_new = contexts_.insert(device).second;
  if (!is_new || device < options_.devices) return;
  report(fmt::format("{}: makes a context on the GPU of threads that have chosen none", name));
}

void Simulation::begin_capture(SimulatedStream& stream, cudaStreamCaptureMode mode) {
  captures_[stream.number] = {.host = ThreadNumber::mine(), .mode = mode};
}

cudaError_t Simulation::end_capture(SimulatedStream& stream) {
  const auto ended = captures_.extract(stream.number);
  if (ended.empty()) return cudaErrorIllegalState;
  return ended.mapped().is_valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
}

// Applies the rules of cudaThreadExchangeStreamCaptureMode.
void Simulation::require_safe_for_captures() {
  const cudaStreamCaptureMode own = host().capture_mode;
  if (own == cudaStreamCaptureModeRelaxed) return;
  for (auto& [stream, capture] : captures_) {
    const bool is_own = capture.host == ThreadNumber::mine();
    const bool forbids =
        is_own ? capture.mode != cudaStreamCaptureModeRelaxed
               : capture.mode == cudaStreamCaptureModeGlobal && own == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    capture.is_valid = false;
    throw Refusal(cudaErrorStreamCaptureUnsupported,
                  is_own ? "unsafe in the thread that captures a graph"
                         : "unsafe while another thread captures a graph in global mode");
  }
}

void Simulation::end_host(uint64_t number) {
  const auto found = hosts_.find(number);
  if (found == hosts_.end()) return;
  ended_.join(found->second.clock);
  hosts_.erase(found);
}

cudaError_t Simulation::last_error(bool forget) {
  HostThread& thread = host();
  const cudaError_t lost = lost_[static_cast<size_t>(thread.device)];
  if (lost != cudaSuccess) return lost;
  return forget ? std::exchange(thread.last_error, cudaSuccess) : thread.last_error;
}

SimulatedStream& Simulation::stream(cudaStream_t handle, std::optional<int> device) {
  if (handle == nullptr) return default_stream(device.value_or(host().device));
  SimulatedStream* const stream = queues_.find(handle);
  if (stream == nullptr) {
    throw Refusal(cudaErrorInvalidResourceHandle, "a stream that nobody has made");
  }
  if (stream->destroyed) {
    throw Refusal(cudaErrorInvalidResourceHandle,
                  fmt::format("{}, which was destroyed", stream->name));
  }
  return *stream;
}

SimulatedStream& Simulation::default_stream(int device) {
  if (!default_stream_allowed_) {
    throw Refusal(cudaErrorInvalidResourceHandle,
                  "work on the default stream, which orders with others unasked; name a stream");
  }
  SimulatedStream*& stream = default_streams_[static_cast<size_t>(device)];
  if (stream == nullptr) {
    stream = &queues_.add(device);
    stream->name = options_.devices == 1 ? "the default stream"
                                         : fmt::format("the default stream of device {}", device);
  }
  return *stream;
}

SimulatedEvent& Simulation::event(cudaEvent_t handle) {
  const auto found = events_.find(handle);
  if (found == events_.end() || found->second->destroyed) {
    throw Refusal(cudaErrorInvalidResourceHandle, "an event that is not there");
  }
  return *found->second;
}

SimulatedStream& Simulation::add_stream() { return queues_.add(host().device); }

SimulatedEvent& Simulation::add_event(bool timed) {
  auto event = std::make_unique<SimulatedEvent>();
  event->device = host().device;
  event->timed = timed;
  SimulatedEvent& added = *event;
  events_[&added] = std::move(event);
  return added;
}

std::vector<std::string> Simulation::left() const {
  std::vector<std::string> left = memory_.left();
  for (const auto& stream : queues_.streams()) {
    const bool is_default =
        std::ranges::find(default_streams_, stream.get()) != default_streams_.end();
    if (!stream->destroyed && !is_default) left.push_back(stream->name);
  }
  for (const auto& [handle, event] : events_) {
    if (!event->destroyed) left.push_back(event->timed ? "an event with timing" : "an event");
  }
  return left;
}

void Simulation::issue(SimulatedStream& stream, std::string name,
                       std::function<void(const Operation&)> run) {
  issue(stream, std::move(name), std::move(run), host());
}

void Simulation::issue(SimulatedStream& stream, std::string name,
                       std::function<void(const Operation&)> run, const HostThread& by) {
  if (captures_.contains(stream.number)) {
    throw Refusal(cudaErrorNotSupported, fmt::format("{} is captured, which is not simulated, and "
                                                     "gets work",
                                                     stream.name));
  }
  stream.clock.join(by.clock);
  stream.clock.tick(stream.number);
  const Operation& operation = log_.add(std::move(name), stream);
  queues_.issue(stream,
                {.run = [this, &operation, run = std::move(run)] { run_work(operation, run); },
                 .issued_ns = by.now_ns});
  queues_.run_some();
}

// A launch that fails stops at some block, so later results are not valid.
void Simulation::run_work(const Operation& operation,
                          const std::function<void(const Operation&)>& run) {
  const int device = operation.stream->device;
  if (lost_[static_cast<size_t>(device)] != cudaSuccess) return;
  try {
    const AsDeviceWork open;
    run(operation);
  } catch (const ptx::Objection& objection) {
    report(fmt::format("{}: {}", operation.text(), objection.what()));
    lose_device(device, cudaErrorLaunchFailure);
  }
}

const Operation& Simulation::begin_at_once(SimulatedStream& stream, std::string name) {
  wait_until([&] { return queues_.finish(stream); });
  stream.clock.join(host().clock);
  stream.clock.tick(stream.number);
  return log_.add(std::move(name), stream);
}

void Simulation::launch(SimulatedStream& stream, std::string name, ptx::Launch launch) {
  launch.seed = options_.seed == 0 ? 0 : options_.seed + static_cast<uint32_t>(log_.all().size());
  const uint64_t blocks = launch.grid.count();
  for (uint64_t i = 0; blocks > 2 * edge_blocks_ && i < edge_blocks_; ++i) {
    launch.only_blocks.push_back(i);
    launch.only_blocks.push_back(blocks - 1 - i);
  }
  const auto run = [this, &stream, launch = std::move(launch)](const Operation& operation) {
    ptx::Launch timed = launch;
    timed.begin_ns = stream.now_ns;
    ptx::LaunchReport report = ptx::run(timed, memory_.of(stream.device));
    stream.now_ns = report.end_ns;
    for (const ptx::ByteRange& bytes : report.read) note(operation, bytes, false);
    for (const ptx::ByteRange& bytes : report.written) note(operation, bytes, true);
    launches_.push_back({.kernel = operation.name, .report = std::move(report)});
  };
  issue(stream, std::move(name), run);
}

// A copy between devices accesses memory of both devices.
ptx::DeviceMemory& Simulation::memory_at(const Operation& operation, const void* begin) {
  const int device = memory_.device_of(begin);
  return memory_.of(device < 0 ? operation.stream->device : device);
}

void Simulation::read(const Operation& operation, const void* begin, int64_t bytes) {
  memory_at(operation, begin).require_defined(begin, bytes);
  touch(operation, begin, bytes, false);
}

void Simulation::touch(const Operation& operation, const void* begin, int64_t bytes, bool writes) {
  const auto address = reinterpret_cast<uint64_t>(begin);
  ptx::DeviceMemory& memory = memory_at(operation, begin);
  if (memory.find(address, bytes) == nullptr) throw ptx::Objection(memory.describe(address, bytes));
  if (writes) memory.define(begin, bytes);
  note(operation, {address, address + static_cast<uint64_t>(bytes)}, writes);
}

// Reports each pair of operation names only once.
void Simulation::note(const Operation& operation, const ptx::ByteRange& bytes, bool writes) {
  history_.touch(operation, bytes, writes, [&](const Conflict& found) {
    const auto verb = [](bool writes) { return writes ? "writes" : "reads"; };
    const auto kind = [&](const Operation& of, bool writes) {
      return fmt::format("{} on {} {}", of.name, of.stream->name, verb(writes));
    };
    const bool is_new = conflicts_
                            .insert(kind(*found.now, found.now_writes) + " " +
                                    kind(*found.before, found.before_writes))
                            .second;
    if (!is_new) return;
    const auto* begin = reinterpret_cast<const void*>(found.bytes.begin);
    const ptx::Allocation* allocation = memory_at(operation, begin).find(found.bytes.begin, 1);
    report(fmt::format("{} {} byte {} of {}, which {} {}, and nothing orders them",
                       found.now->text(), verb(found.now_writes),
                       allocation == nullptr ? 0 : found.bytes.begin - allocation->begin,
                       allocation == nullptr ? "memory that is gone" : allocation->name,
                       found.before->text(), verb(found.before_writes)));
  });
}

std::shared_ptr<const Point> Simulation::point_of(SimulatedStream& stream, const HostThread& by) {
  stream.clock.join(by.clock);
  auto point = std::make_shared<Point>();
  point->stream = stream.number;
  point->clock = stream.clock;
  queues_.issue(stream, {.run =
                             [this, &stream, point] {
                               point->at_ns = stream.now_ns;
                               point->reached = true;
                             },
                         .issued_ns = by.now_ns});
  queues_.run_some();
  return point;
}

void Simulation::record(SimulatedEvent& event, SimulatedStream& stream) {
  event.last = point_of(stream, host());
}

void Simulation::wait(SimulatedStream& stream, const SimulatedEvent& event) {
  if (event.last) wait(stream, event.last, host());
}

void Simulation::wait(SimulatedStream& stream, std::shared_ptr<const Point> point,
                      const HostThread& by) {
  stream.clock.join(point->clock);
  queues_.issue(stream, {.after = std::move(point), .issued_ns = by.now_ns});
  queues_.run_some();
}

void Simulation::wait_until(const std::function<bool()>& is_done) {
  // wait() releases the mutex, so that another thread can report a held point as reached.
  while (!is_done()) changed_.wait(runtime_mutex());
}

void Simulation::host_waits_for(SimulatedStream& stream, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  wait_until([&] { return queues_.finish(stream); });
  host_saw(stream.clock, stream.now_ns);
}

void Simulation::host_waits_for(const Point& point, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  wait_until([&] { return queues_.reach(point); });
  host_saw(point.clock, point.at_ns);
}

void Simulation::host_waits_for_device(int device, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  wait_until([&] { return queues_.finish_device(device); });
  for (const auto& stream : queues_.streams()) {
    if (stream->device == device) host_saw(stream->clock, stream->now_ns);
  }
}

void Simulation::host_waits_for_process(std::string_view kind) {
  if (!options_.one_process) return host_waits_for_device(host().device, kind);
  ++host_waits_[std::string(kind)];
  for (int device = 0; device < options_.devices; ++device) {
    wait_until([&] { return queues_.finish_device(device); });
  }
  for (const auto& stream : queues_.streams()) host_saw(stream->clock, stream->now_ns);
}

bool Simulation::may_wait_for_peers(std::string_view call) {
  if (!options_.one_process || !peer_waits_) return false;
  const std::string collective = peer_waits_(host().device);
  if (collective.empty()) return false;
  report(fmt::format("{} on device {} may wait for {}, which waits for device {}", call,
                     host().device, collective, host().device));
  return true;
}

void Simulation::load(const void* kernel, std::string_view call) {
  const bool is_new = loaded_.insert({host().device, kernel}).second;
  if (is_new) may_wait_for_peers(fmt::format("{}, which loads a kernel,", call));
}

void Simulation::host_saw(const Clock& clock, uint64_t ns) {
  HostThread& thread = host();
  thread.clock.join(clock);
  thread.now_ns = std::max(thread.now_ns, ns);
}

void Simulation::lose_device(int device, cudaError_t code) {
  cudaError_t& lost = lost_[static_cast<size_t>(device)];
  if (lost == cudaSuccess) lost = code;
}

}  // namespace fsdp::testing::sim

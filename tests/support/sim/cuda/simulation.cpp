#include "support/sim/cuda/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "support/sim/guarded_memory.h"

namespace fsdp::testing::sim {
namespace {

// Of the calling thread, for good: the system's own numbers come again.
uint64_t number_of_thread() {
  static std::atomic<uint64_t> threads = 0;
  static thread_local const uint64_t number = ++threads;
  return number;
}

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
      memory_(options.devices, options.bytes_each),
      queues_(options.schedule, options.seed),
      lost_(static_cast<size_t>(options.devices), cudaSuccess),
      default_streams_(static_cast<size_t>(options.devices), nullptr) {}

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
  if (lost != cudaSuccess) return lost;
  try {
    const cudaError_t code = body(*this);
    return code == cudaSuccess ? lost : code;
  } catch (const Refusal& refusal) {
    report(fmt::format("{}: {}", name, refusal.what()));
    return refusal.code;
  }
}

HostThread& Simulation::host() { return hosts_[number_of_thread()]; }

cudaError_t Simulation::last_error(bool forget) {
  HostThread& thread = host();
  const cudaError_t lost = lost_[static_cast<size_t>(thread.device)];
  if (lost != cudaSuccess) return lost;
  return forget ? std::exchange(thread.last_error, cudaSuccess) : thread.last_error;
}

SimulatedStream& Simulation::stream(cudaStream_t handle) {
  if (handle == nullptr) return default_stream();
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

SimulatedStream& Simulation::default_stream() {
  if (!default_stream_allowed_) {
    throw Refusal(cudaErrorInvalidResourceHandle,
                  "work on the default stream, which orders with others unasked; name a stream");
  }
  const int device = host().device;
  SimulatedStream*& stream = default_streams_[static_cast<size_t>(device)];
  if (stream == nullptr) {
    stream = &queues_.add(device);
    stream->name = options_.devices == 1 ? "the default stream"
                                         : fmt::format("the default stream of device {}", device);
  }
  return *stream;
}

SimulatedEvent& Simulation::event(cudaEvent_t handle) {
  const auto found = std::find_if(events_.begin(), events_.end(), [&](const SimulatedEvent& it) {
    return static_cast<const void*>(&it) == handle;
  });
  if (found == events_.end() || found->destroyed) {
    throw Refusal(cudaErrorInvalidResourceHandle, "an event that is not there");
  }
  return *found;
}

SimulatedStream& Simulation::add_stream() { return queues_.add(host().device); }

SimulatedEvent& Simulation::add_event(bool timed) {
  return events_.emplace_back(SimulatedEvent{.device = host().device, .timed = timed});
}

void Simulation::issue(SimulatedStream& stream, std::string name,
                       std::function<void(const Operation&)> run) {
  stream.clock.join(host().clock);
  stream.clock.tick(stream.number);
  const Operation& operation = log_.add(std::move(name), stream);
  queues_.issue(stream,
                {.run = [this, &operation, run = std::move(run)] { run_work(operation, run); }});
  queues_.run_some();
}

// A launch that was objected to stopped somewhere: nothing after it can be trusted.
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

void Simulation::launch(SimulatedStream& stream, std::string name, ptx::Launch launch) {
  launch.seed = options_.seed == 0 ? 0 : options_.seed + static_cast<uint32_t>(log_.all().size());
  issue(stream, std::move(name), [this, launch = std::move(launch)](const Operation& operation) {
    const ptx::LaunchReport report = ptx::run(launch, memory_.of(operation.stream->device));
    launches_.push_back({.kernel = operation.name, .report = report});
  });
}

// Copies between devices look at the memory of both.
ptx::DeviceMemory& Simulation::memory_at(const Operation& operation, const void* begin) {
  const int device = memory_.device_of(begin);
  return memory_.of(device < 0 ? operation.stream->device : device);
}

void Simulation::read(const Operation& operation, const void* begin, int64_t bytes) {
  memory_at(operation, begin).require_defined(begin, bytes);
}

void Simulation::write(const Operation& operation, void* begin, int64_t bytes) {
  memory_at(operation, begin).define(begin, bytes);
}

void Simulation::record(SimulatedEvent& event, SimulatedStream& stream) {
  stream.clock.join(host().clock);
  auto point = std::make_shared<Point>();
  point->stream = stream.number;
  point->clock = stream.clock;
  event.last = point;
  queues_.issue(stream, {.run = [this, point] {
                  point->reached_at = queues_.pieces_run();
                  point->reached = true;
                }});
  queues_.run_some();
}

void Simulation::wait(SimulatedStream& stream, const SimulatedEvent& event) {
  if (!event.last) return;
  stream.clock.join(event.last->clock);
  queues_.issue(stream, {.after = event.last});
  queues_.run_some();
}

void Simulation::host_waits_for(SimulatedStream& stream, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  queues_.finish(stream);
  host_saw(stream.clock);
}

void Simulation::host_waits_for(const Point& point, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  queues_.reach(point);
  host_saw(point.clock);
}

void Simulation::host_waits_for_device(int device, std::string_view kind) {
  ++host_waits_[std::string(kind)];
  queues_.finish_device(device);
  for (const auto& stream : queues_.streams()) {
    if (stream->device == device) host_saw(stream->clock);
  }
}

void Simulation::lose_device(int device, cudaError_t code) {
  cudaError_t& lost = lost_[static_cast<size_t>(device)];
  if (lost == cudaSuccess) lost = code;
}

}  // namespace fsdp::testing::sim

// The CUDA runtime's functions for streams and events.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "simulator/cuda/simulation.h"

using namespace fsdp::testing::sim;

namespace {

constexpr int kLowestPriority = 0, kHighestPriority = -5;

cudaStream_t handle_of(SimulatedStream& stream) { return reinterpret_cast<cudaStream_t>(&stream); }

cudaError_t make_stream(std::string_view name, cudaStream_t* stream, unsigned flags, int priority) {
  return call(name, [&](Simulation& simulation) {
    if (flags != cudaStreamNonBlocking) {
      throw Refusal(cudaErrorInvalidValue,
                    "a stream that waits for the default stream; make it cudaStreamNonBlocking");
    }
    SimulatedStream& made = simulation.add_stream();
    made.priority = std::clamp(priority, kHighestPriority, kLowestPriority);
    *stream = handle_of(made);
    return cudaSuccess;
  });
}

void require_device(const SimulatedEvent& event, const SimulatedStream& stream) {
  if (event.device == stream.device) return;
  throw Refusal(cudaErrorInvalidResourceHandle,
                fmt::format("an event of device {} is recorded on {} of device {}", event.device,
                            stream.name, stream.device));
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream("cudaStreamCreateWithFlags", stream, flags, kLowestPriority);
}

// The priority is only stored: it affects when work runs, and correct code must not rely on that
// order. A value out of range is replaced by the nearest valid one, as in CUDA.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return make_stream("cudaStreamCreateWithPriority", stream, flags, priority);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call("cudaStreamGetPriority", [&](Simulation& simulation) {
    *priority = simulation.stream(stream).priority;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](Simulation&) {
    *lowest = kLowestPriority;
    *highest = kHighestPriority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&](Simulation& simulation) {
    if (stream == nullptr) throw Refusal(cudaErrorInvalidResourceHandle, "the default stream");
    simulation.stream(stream).destroyed = true;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](Simulation& simulation) {
    simulation.host_waits_for(simulation.stream(stream), "cudaStreamSynchronize");
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&](Simulation& simulation) {
    SimulatedStream& asked = simulation.stream(stream);
    // A query makes progress in every schedule, so that a host that polls eventually sees the end.
    simulation.queues().advance(asked);
    if (!asked.queue.empty()) return cudaErrorNotReady;
    simulation.host_saw(asked.clock, asked.now_ns);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return call("cudaStreamWaitEvent", [&](Simulation& simulation) {
    simulation.wait(simulation.stream(stream), simulation.event(event));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Simulation& simulation) {
    simulation.begin_capture(simulation.stream(stream), mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&](Simulation& simulation) {
    *graph = nullptr;
    return simulation.end_capture(simulation.stream(stream));
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Simulation& simulation) {
    *mode = std::exchange(simulation.host().capture_mode, *mode);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Simulation& simulation) {
    if ((flags & cudaEventInterprocess) != 0) {
      throw Refusal(cudaErrorInvalidValue, "an event of several processes, which is not simulated");
    }
    SimulatedEvent& made = simulation.add_event((flags & cudaEventDisableTiming) == 0);
    *event = reinterpret_cast<cudaEvent_t>(&made);
    return cudaSuccess;
  });
}

// Marks the event as destroyed. Streams that wait for its last recorded point still wait.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Simulation& simulation) {
    simulation.event(event).destroyed = true;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Simulation& simulation) {
    SimulatedEvent& recorded = simulation.event(event);
    SimulatedStream& on = simulation.stream(stream);
    require_device(recorded, on);
    simulation.record(recorded, on);
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Simulation& simulation) {
    const SimulatedEvent& asked = simulation.event(event);
    if (!asked.last) return cudaSuccess;
    simulation.queues().advance_to(*asked.last);
    if (!asked.last->reached) return cudaErrorNotReady;
    simulation.host_saw(asked.last->clock, asked.last->at_ns);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Simulation& simulation) {
    const SimulatedEvent& reached = simulation.event(event);
    if (reached.last) simulation.host_waits_for(*reached.last, "cudaEventSynchronize");
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call("cudaEventElapsedTime", [&](Simulation& simulation) {
    const SimulatedEvent& first = simulation.event(from);
    const SimulatedEvent& last = simulation.event(to);
    if (!first.timed || !last.timed || !first.last || !last.last) {
      throw Refusal(cudaErrorInvalidResourceHandle,
                    "an event that does not tell the time, or was never recorded");
    }
    if (!first.last->reached || !last.last->reached) return cudaErrorNotReady;
    const auto ns = static_cast<int64_t>(last.last->at_ns - first.last->at_ns);
    *milliseconds = static_cast<float>(static_cast<double>(ns) / 1e6);
    return cudaSuccess;
  });
}

}  // extern "C"

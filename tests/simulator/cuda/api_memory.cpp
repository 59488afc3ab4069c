// The CUDA runtime's functions for memory.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "simulator/cuda/simulation.h"

using namespace fsdp::testing::sim;

namespace {

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  cudaMemcpyKind kind;
};

bool is_host(Place place) { return place != Place::kDevice; }

void require_direction(const Copy& copy, Place to, Place from) {
  const bool fits =
      copy.kind == cudaMemcpyDefault ||
      (is_host(from) ==
           (copy.kind == cudaMemcpyHostToDevice || copy.kind == cudaMemcpyHostToHost) &&
       is_host(to) == (copy.kind == cudaMemcpyDeviceToHost || copy.kind == cudaMemcpyHostToHost));
  if (!fits) {
    throw Refusal(cudaErrorInvalidMemcpyDirection,
                  fmt::format("{} bytes are copied in direction {}, and the memory is elsewhere",
                              copy.bytes, static_cast<int>(copy.kind)));
  }
}

// Issues a copy. If the source is pageable host memory, it is copied during the call, because no
// stream can wait for it. If the result is in pageable memory, the host waits, because it may read
// the result as soon as the call returns.
void issue_copy(Simulation& simulation, SimulatedStream& stream, const Copy& copy,
                std::string_view caller) {
  if (copy.bytes == 0) return;
  const Place to = simulation.memory().place_of(copy.to);
  const Place from = simulation.memory().place_of(copy.from);
  require_direction(copy, to, from);
  const auto count = static_cast<int64_t>(copy.bytes);
  std::shared_ptr<std::vector<std::byte>> taken;  // shared by the copies of the lambda
  if (from == Place::kPageable) {
    const auto* begin = static_cast<const std::byte*>(copy.from);
    taken = std::make_shared<std::vector<std::byte>>(begin, begin + count);
  }
  simulation.issue(stream, "copy", [=, &simulation](const Operation& operation) {
    if (from != Place::kPageable) simulation.read(operation, copy.from, count);
    if (to != Place::kPageable) simulation.touch(operation, copy.to, count, true);
    std::memmove(copy.to, taken ? taken->data() : copy.from, copy.bytes);
  });
  if (to == Place::kPageable) {
    simulation.host_waits_for(stream, fmt::format("{} to pageable memory", caller));
  }
}

void issue_set(Simulation& simulation, SimulatedStream& stream, void* to, int value, size_t bytes) {
  if (bytes == 0) return;
  if (simulation.memory().place_of(to) == Place::kPageable) {
    throw Refusal(cudaErrorInvalidValue, "the host's own memory is set by a device");
  }
  simulation.issue(stream, "set", [=, &simulation](const Operation& operation) {
    simulation.touch(operation, to, static_cast<int64_t>(bytes), true);
    std::memset(to, value, bytes);
  });
}

cudaError_t allocate(std::string_view name, void** begin, size_t bytes, bool pinned) {
  return call(name, [&](Simulation& simulation) {
    const auto count = static_cast<int64_t>(bytes);
    *begin = nullptr;
    if (bytes == 0) return cudaSuccess;
    simulation.may_wait_for_peers(name);
    *begin = pinned ? simulation.memory().allocate_pinned(count)
                    : simulation.memory().allocate(simulation.host().device, count);
    return *begin == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** begin, size_t bytes) {
  return allocate("cudaMalloc", begin, bytes, false);
}
cudaError_t cudaMallocHost(void** begin, size_t bytes) {
  return allocate("cudaMallocHost", begin, bytes, true);
}
cudaError_t cudaHostAlloc(void** begin, size_t bytes, unsigned flags) {
  if (flags == cudaHostAllocDefault) return allocate("cudaHostAlloc", begin, bytes, true);
  return call("cudaHostAlloc", [&](Simulation&) -> cudaError_t {
    throw Refusal(cudaErrorInvalidValue, fmt::format("flags {}, which are not simulated", flags));
  });
}

cudaError_t cudaFree(void* begin) {
  return call("cudaFree", [&](Simulation& simulation) {
    if (begin == nullptr) return cudaSuccess;
    simulation.may_wait_for_peers("cudaFree");
    const int device = simulation.memory().device_of(begin);
    if (simulation.works_endlessly(device)) {
      simulation.report(
          "cudaFree: memory goes while a collective that does not end is on its device");
    }
    if (device >= 0) simulation.host_waits_for_device(device, "cudaFree");
    if (!simulation.memory().free(begin)) {
      throw Refusal(cudaErrorInvalidValue, "no allocation begins there, or not any more");
    }
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* begin) {
  return call("cudaFreeHost", [&](Simulation& simulation) {
    if (begin == nullptr) return cudaSuccess;
    if (!simulation.may_wait_for_peers("cudaFreeHost")) {  // otherwise the call does not return
      simulation.host_waits_for_process("cudaFreeHost");
    }
    if (!simulation.memory().free_pinned(begin)) {
      throw Refusal(cudaErrorInvalidValue, "no pinned allocation begins there, or not any more");
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Simulation& simulation) {
    issue_copy(simulation, simulation.stream(stream), {to, from, bytes, kind}, "cudaMemcpyAsync");
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Simulation& simulation) {
    SimulatedStream& stream = simulation.stream(nullptr);
    issue_copy(simulation, stream, {to, from, bytes, kind}, "cudaMemcpy");
    simulation.host_waits_for(stream, "cudaMemcpy");
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Simulation& simulation) {
    issue_set(simulation, simulation.stream(stream), to, value, bytes);
    return cudaSuccess;
  });
}

// The host does not wait, because cudaMemset is asynchronous for device memory.
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return call("cudaMemset", [&](Simulation& simulation) {
    issue_set(simulation, simulation.stream(nullptr), to, value, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  return call("cudaMemGetInfo", [&](Simulation& simulation) {
    *left = static_cast<size_t>(simulation.memory().bytes_left(simulation.host().device));
    *total = static_cast<size_t>(simulation.memory().bytes_each());
    return cudaSuccess;
  });
}

}  // extern "C"

// Streams, events and arrays of floats for tests of the simulated GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::testing {

inline void require(cudaError_t code) { REQUIRE(code == cudaSuccess); }

inline cudaStream_t make_stream(sim::SimulatedGpu& gpu, const std::string& name) {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  gpu.name_stream(stream, name);
  return stream;
}

inline cudaEvent_t make_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, flags));
  return event;
}

inline void order(cudaStream_t first, cudaStream_t then) {
  cudaEvent_t event = make_event();
  require(cudaEventRecord(event, first));
  require(cudaStreamWaitEvent(then, event, 0));
  require(cudaEventDestroy(event));  // the wait stays in effect
}

inline float* make_floats(int64_t numel) {
  void* data = nullptr;
  require(cudaMalloc(&data, static_cast<size_t>(numel) * sizeof(float)));
  return static_cast<float*>(data);
}

inline float* make_pinned_floats(int64_t numel) {
  void* data = nullptr;
  require(cudaMallocHost(&data, static_cast<size_t>(numel) * sizeof(float)));
  return static_cast<float*>(data);
}

inline cudaError_t upload(float* to, const std::vector<float>& values, cudaStream_t stream) {
  return cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice,
                         stream);
}

inline std::vector<float> download(const float* from, int64_t numel, cudaStream_t stream) {
  std::vector<float> values(static_cast<size_t>(numel));
  require(cudaMemcpyAsync(values.data(), from, values.size() * sizeof(float),
                          cudaMemcpyDeviceToHost, stream));
  return values;
}

// Checks that exactly one report exists and contains all of these texts.
inline void check_one_report(sim::SimulatedGpu& gpu, const std::vector<std::string>& parts) {
  const std::vector<std::string> reports = gpu.take_reports();
  CAPTURE(reports.empty() ? std::string("none") : reports.front());
  REQUIRE(reports.size() == 1);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(reports.front().find(part) != std::string::npos);
  }
}

}  // namespace fsdp::testing

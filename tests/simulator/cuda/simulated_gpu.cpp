#include "simulator/cuda/simulated_gpu.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <utility>

namespace fsdp::testing::sim {

SimulatedGpu::SimulatedGpu(const SimulationOptions& options)
    : simulation_(std::make_unique<Simulation>(options)) {
  const std::lock_guard lock(runtime_mutex());
  if (current_simulation() != nullptr) {
    throw StateError({.what = "a second simulated GPU",
                      .hint = "one has several devices: SimulationOptions::devices"});
  }
  current_simulation() = simulation_.get();
}

SimulatedGpu::~SimulatedGpu() {
  const std::vector<std::string> left = take_reports();
  {
    const std::lock_guard lock(runtime_mutex());
    current_simulation() = nullptr;
  }
  for (const std::string& text : left) FAIL_CHECK("the simulated GPU objects: " << text);
}

std::vector<std::string> SimulatedGpu::take_reports() {
  const std::lock_guard lock(runtime_mutex());
  for (int device = 0; device < simulation_->options().devices; ++device) {
    simulation_->queues().finish_device(device);
  }
  return std::exchange(simulation_->reports(), {});
}

void SimulatedGpu::fail(std::string_view name, int64_t n, cudaError_t code) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->faults().fail(name, n, code);
}

void SimulatedGpu::fail_any(int64_t n, cudaError_t code) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->faults().fail_any(n, code);
}

void SimulatedGpu::choose(FaultScript::Choice choice) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->faults().choose(std::move(choice));
}

std::vector<std::string> SimulatedGpu::left() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->left();
}

int64_t SimulatedGpu::calls(std::string_view name) const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->faults().calls(name);
}

int64_t SimulatedGpu::all_calls() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->faults().all_calls();
}

std::map<std::string, int64_t> SimulatedGpu::host_waits() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->host_waits();
}

uint64_t SimulatedGpu::host_ns() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->host().now_ns;
}

std::set<int> SimulatedGpu::contexts() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->contexts();
}

std::vector<LaunchRecord> SimulatedGpu::launches() const {
  const std::lock_guard lock(runtime_mutex());
  return simulation_->launches();
}

void SimulatedGpu::allow_default_stream(bool allowed) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->allow_default_stream(allowed);
}

void SimulatedGpu::run_only_edges(uint64_t blocks) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->run_only_edges(blocks);
}

void* SimulatedGpu::sparse_memory(int64_t bytes) {
  const std::lock_guard lock(runtime_mutex());
  void* const begin = simulation_->memory().allocate_sparse(0, bytes);
  if (begin != nullptr) return begin;
  throw DeviceError({.what = fmt::format("no addresses for {} bytes of sparse memory", bytes)});
}

void SimulatedGpu::only_read(const void* begin) {
  const std::lock_guard lock(runtime_mutex());
  GpuMemory& memory = simulation_->memory();
  memory.of(memory.device_of(begin)).only_read(begin);
}

void SimulatedGpu::name_memory(const void* begin, std::string name) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->memory().rename(begin, name);
}

void SimulatedGpu::name_stream(cudaStream_t stream, std::string name) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->stream(stream).name = std::move(name);
}

void SimulatedGpu::label(cudaStream_t stream, std::string_view name) {
  const std::lock_guard lock(runtime_mutex());
  simulation_->log().label(simulation_->stream(stream), name);
}

bool SimulatedGpu::is_ordered(std::string_view one, std::string_view other) const {
  return happens_before(one, other) || happens_before(other, one);
}

bool SimulatedGpu::happens_before(std::string_view first, std::string_view then) const {
  const std::lock_guard lock(runtime_mutex());
  return sim::happens_before(simulation_->log().find(first), simulation_->log().find(then));
}

}  // namespace fsdp::testing::sim

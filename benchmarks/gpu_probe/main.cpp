// Runs one measurement of tools/bench gpu until stdin ends: gpu_probe cpu|cuda NAME ARGUMENTS (see
// probe.h). It uses the first GPU that is visible to the process.
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fsdp/error.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>

#include "benchmarks/gpu_probe/probe.h"

namespace gpu_probe {

void synchronize(const Place& place) {
  if (!place.device.is_cuda()) return;
  c10::impl::VirtualGuardImpl(place.device.type()).synchronizeDevice(place.device.index());
}

double seconds_of(const Place& place, int64_t repetitions, const std::function<void()>& work) {
  synchronize(place);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < repetitions; ++i) work();
  synchronize(place);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void serve(const std::map<std::string, Command>& commands) {
  for (std::string name; std::cin >> name;) {
    const auto found = commands.find(name);
    if (found == commands.end()) refuse(fmt::format("there is no command '{}'", name));
    fmt::print("{:.6g}\n", found->second(std::cin));
    std::fflush(stdout);
  }
}

Command rate_of(const Place& place, double amount, std::function<void()> work) {
  return [&place, amount, work = std::move(work)](std::istream& arguments) {
    int64_t repetitions = 0;
    if (!(arguments >> repetitions) || repetitions < 1)
      refuse("the number of repetitions is missing");
    return amount * static_cast<double>(repetitions) / seconds_of(place, repetitions, work);
  };
}

void refuse(const std::string& what) {
  throw fsdp::InvalidArgument(
      {.what = what, .where = "gpu_probe", .hint = "see benchmarks/gpu_probe/probe.h"},
      fsdp::ExitCode::kUsage);
}

namespace {

// A measurement and its number of arguments.
struct Measurement {
  size_t words;
  void (*serve)(const Place& place, const Words& words);
};

const std::map<std::string, Measurement> kMeasurements{
    {"rates", {2, serve_rates}},     {"adamw", {2, serve_adamw}},
    {"step", {6, serve_step}},       {"collectives", {2, serve_collectives}},
    {"overlap", {4, serve_overlap}},
};

Place place_of(const std::string& device) {
  if (device != "cpu" && device != "cuda") refuse(fmt::format("there is no device '{}'", device));
  const bool on_gpu = device == "cuda";
  const auto kind = on_gpu ? fsdp::DeviceKind::kCuda : fsdp::DeviceKind::kCpu;
  // The mesh must be created first, because that loads LibTorch's CUDA library.
  fsdp::Mesh alone = fsdp::Mesh::local(1, {.device = kind}).front();
  return {.kind = kind,
          .device = on_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU),
          .alone = std::move(alone)};
}

void run(const Words& words) {
  if (words.size() < 2) refuse("usage: gpu_probe cpu|cuda NAME ARGUMENTS");
  const auto found = kMeasurements.find(words[1]);
  if (found == kMeasurements.end()) refuse(fmt::format("there is no measurement '{}'", words[1]));
  const Words arguments(words.begin() + 2, words.end());
  if (arguments.size() != found->second.words) {
    refuse(fmt::format("{} takes {} arguments", words[1], found->second.words));
  }
  at::set_num_threads(1);
  const Place place = place_of(words[0]);
  found->second.serve(place, arguments);
}

}  // namespace
}  // namespace gpu_probe

int main(int argc, char** argv) {
  try {
    gpu_probe::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}

// Declares the measurements of tools/bench gpu, on one GPU, or on the CPU to test their logic.
#pragma once

#include <c10/core/Device.h>
#include <fsdp/mesh.h>

#include <cstdint>
#include <functional>
#include <istream>
#include <map>
#include <string>
#include <vector>

namespace gpu_probe {

using Words = std::vector<std::string>;

// The measured device.
struct Place {
  fsdp::DeviceKind kind;
  at::Device device;
  fsdp::Mesh alone;  // a mesh of one rank on the device
};

// Waits until the device has finished all work.
void synchronize(const Place& place);
double seconds_of(const Place& place, int64_t repetitions, const std::function<void()>& work);

// Answers each line "NAME ARGUMENTS" on stdin with a line of one number, until stdin ends.
using Command = std::function<double(std::istream& arguments)>;
void serve(const std::map<std::string, Command>& commands);
// Returns a command "NAME REPETITIONS", whose result is `amount` per repetition and second.
Command rate_of(const Place& place, double amount, std::function<void()> work);

// Throws InvalidArgument (64) for wrong words.
[[noreturn]] void refuse(const std::string& what);

// rates NUMEL SIZE: copy (GB/s of NUMEL floats, read and written), matrix (TFLOP/s of a product of
// SIZE × SIZE matrices in bfloat16)
void serve_rates(const Place& place, const Words& words);
// adamw NUMEL UNITS: ours, ours_copy (with a bfloat16 copy), torch, torch_copy, in GB/s
void serve_adamw(const Place& place, const Words& words);
// step MODE PRESET WINDOWS TOKENS DTYPE CLIP: "run N" (ms of a step), loss (of the last step).
// MODE: full-shard, common-path (rank 0 of eight, with simulated peers) or plain (only LibTorch,
// float32)
void serve_step(const Place& place, const Words& words);
// collectives RANKS BYTES: all_gather and reduce_scatter between threads, in GB/s of traffic
void serve_collectives(const Place& place, const Words& words);
// overlap WIDTH UNITS FORWARD_US BACKWARD_US: "step PREFETCH WIRE_US" of two threads, in µs
void serve_overlap(const Place& place, const Words& words);

}  // namespace gpu_probe

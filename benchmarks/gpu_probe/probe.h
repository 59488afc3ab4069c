// Declares the measurements of tools/bench gpu. They run on one GPU, or on the CPU to test their
// logic.
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

// A function that answers a command. Each line "NAME ARGUMENTS" on stdin gets a line with one
// number, until stdin ends.
using Command = std::function<double(std::istream& arguments)>;
void serve(const std::map<std::string, Command>& commands);
// Returns a command "NAME REPETITIONS". Its result is `amount` times the repetitions per second.
Command rate_of(const Place& place, double amount, std::function<void()> work);

// Throws InvalidArgument (64) for a wrong word.
[[noreturn]] void refuse(const std::string& what);

// rates NUMEL SIZE has two commands. copy: GB/s of NUMEL floats, read and written. matrix:
// TFLOP/s of a product of SIZE × SIZE matrices in bfloat16.
void serve_rates(const Place& place, const Words& words);
// adamw NUMEL UNITS has the commands ours, ours_copy (with a bfloat16 copy), torch and torch_copy,
// all in GB/s.
void serve_adamw(const Place& place, const Words& words);
// step MODE PRESET WINDOWS TOKENS DTYPE CLIP has two commands. "run N": ms of a step. loss: the
// loss of the last step. MODE is full-shard, common-path (rank 0 of eight, with simulated peers) or
// plain (only LibTorch, float32).
void serve_step(const Place& place, const Words& words);
// collectives RANKS BYTES has the commands all_gather and reduce_scatter between threads, in
// GB/s of traffic.
void serve_collectives(const Place& place, const Words& words);
// overlap WIDTH UNITS FORWARD_US BACKWARD_US has the command "step PREFETCH WIRE_US": a step of two
// threads, in µs.
void serve_overlap(const Place& place, const Words& words);

}  // namespace gpu_probe

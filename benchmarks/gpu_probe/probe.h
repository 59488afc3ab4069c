// What tools/bench gpu measures: work on one GPU, or on the CPU, where its logic is tried.
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

struct Place {
  fsdp::DeviceKind kind;
  at::Device device;
  fsdp::Mesh alone;  // of one rank there
};

// The host waits until the device has done everything.
void synchronize(const Place& place);
double seconds_of(const Place& place, int64_t repetitions, const std::function<void()>& work);

// Answers each line "NAME ARGUMENTS" on stdin with a line of one number, until there are no more.
using Command = std::function<double(std::istream& arguments)>;
void serve(const std::map<std::string, Command>& commands);
// A command of "NAME REPETITIONS": `amount` a repetition and second.
Command rate_of(const Place& place, double amount, std::function<void()> work);

// Errors: InvalidArgument (64) for words that are not understood.
[[noreturn]] void refuse(const std::string& what);

// rates NUMEL SIZE: copy (GB/s, read and written, of as many floats), matrix (TFLOP/s of a product
// of squares of that size in bfloat16)
void serve_rates(const Place& place, const Words& words);
// adamw NUMEL UNITS: ours, ours_copy (with a bfloat16 copy), torch, torch_copy, in GB/s
void serve_adamw(const Place& place, const Words& words);
// step MODE PRESET WINDOWS TOKENS DTYPE CLIP: "run N" (ms of a step), loss (of the last one).
// MODE: full-shard, common-path (one of eight imagined ranks) or plain (LibTorch alone, float32)
void serve_step(const Place& place, const Words& words);
// collectives RANKS BYTES: all_gather and reduce_scatter between threads, in GB/s of their traffic
void serve_collectives(const Place& place, const Words& words);
// overlap WIDTH UNITS FORWARD_US BACKWARD_US: "step PREFETCH WIRE_US" of two threads, in µs
void serve_overlap(const Place& place, const Words& words);

}  // namespace gpu_probe

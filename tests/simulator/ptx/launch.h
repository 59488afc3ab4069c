// Runs a kernel on the host, a warp at a time, and reports errors that a GPU would ignore.
//
// Each access is checked: it must be inside one allocation, aligned to its size, of bytes written
// before (except for a thread's local memory), and ordered with the accesses of other threads.
// Accesses of different blocks are never ordered. Within a block a barrier orders them, within a
// warp also a barrier of the warp. A barrier that only some threads of a warp reach, and a shuffle
// or vote with missing lanes, are Objections, too.
//
// Blocks run one after the other and warps in turn, both in an order that `seed` draws. Races are
// found by the order that barriers enforce, not by the order in which accesses happen to run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/ptx/device_memory.h"
#include "simulator/ptx/program.h"

namespace fsdp::testing::ptx {

struct Dim {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

struct Launch {
  const Kernel* kernel = nullptr;
  Dim grid, block;                    // at most 2^32 - 2 blocks
  std::vector<std::byte> parameters;  // Kernel::parameter_bytes bytes, in its layout
  uint32_t seed = 0;                  // 0: blocks and warps in ascending order
  uint64_t begin_ns = 0;              // by the device's clock
  // Numbers of blocks to run, x first, if the launch is too large for all. Empty: all.
  std::vector<uint64_t> only_blocks = {};
};

// [Note: virtual time]
// Only sleeping takes time. The device's clock shows `begin_ns` when a warp starts. A nanosleep
// advances it by the longest time that one of the warp's lanes requests (a GPU sleeps up to twice
// as long), at most a millisecond. A barrier of the block moves all warps to the latest time, and
// the launch ends with the latest of its blocks. A kernel that reads the clock in a loop without
// sleeping does not end.

// Measurements of a launch. A sector has 32 bytes. `sectors` counts those that the warps' accesses
// touched, access by access; `least_sectors` is the least that as many bytes need.
struct LaunchReport {
  uint64_t instructions = 0;  // counts single threads
  uint64_t loads = 0, stores = 0;
  uint64_t sectors = 0, least_sectors = 0;
  uint64_t end_ns = 0;                   // by the device's clock
  std::vector<ByteRange> read, written;  // device memory, coalesced, in ascending order
};

// Errors: Objection naming kernel, block, thread and instruction.
LaunchReport run(const Launch& launch, DeviceMemory& memory);

}  // namespace fsdp::testing::ptx

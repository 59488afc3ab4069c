// Runs a kernel on the host, one warp at a time, and reports errors that a GPU ignores.
//
// Each access is checked. It must be inside one allocation and aligned to its size. Its bytes must
// have been written before, except in a thread's local memory. It must be ordered with the accesses
// of other threads. Accesses of different blocks are never ordered. Within a block a barrier orders
// them. Within a warp, a barrier of the warp orders them too.
// A barrier that only some threads of a warp reach, and a shuffle or vote with missing lanes, are
// also Objections.
//
// Blocks run one after another, and warps run in turn. `seed` selects both orders. A race is found
// from the order that barriers enforce, not from the order in which the accesses ran.
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
  uint32_t seed = 0;                  // start time, by the device's clock
  uint64_t begin_ns = 0;              // by the device's clock
  // The numbers of the blocks to run, x first, if the launch is too large to run all. Empty: all.
  std::vector<uint64_t> only_blocks = {};
};

// [Note: virtual time]
// Only sleeping takes time. When a warp starts, the device's clock shows `begin_ns`. A nanosleep
// advances the clock by the longest time that a lane of the warp requests, but at most by a
// millisecond. (A GPU sleeps up to twice the requested time.) A barrier of the block sets the
// clocks of all warps to the latest one. The launch ends when its last block ends. A kernel that
// reads the clock in a loop without sleeping does not end.

// Measurements of a launch. A sector has 32 bytes. `sectors` is the number of sectors that the
// warps' accesses touched, summed over the accesses. `least_sectors` is the lowest number that the
// same bytes need.
struct LaunchReport {
  uint64_t instructions = 0;  // summed over threads
  uint64_t loads = 0, stores = 0;
  uint64_t sectors = 0, least_sectors = 0;
  uint64_t end_ns = 0;                   // end time, by the device's clock
  std::vector<ByteRange> read, written;  // device memory, coalesced, in ascending order
};

// Errors: Objection. Its text names kernel, block, thread and instruction.
LaunchReport run(const Launch& launch, DeviceMemory& memory);

}  // namespace fsdp::testing::ptx

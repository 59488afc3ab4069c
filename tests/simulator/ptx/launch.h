// Runs a kernel on the host, a warp at a time, and objects to what a GPU would do in silence.
//
// Each access is checked: inside one allocation, aligned to its size, of bytes that were written
// before (but for a thread's local memory), and ordered with those of other threads: of other
// blocks never (there is no order between blocks), of the same block by a barrier between, of the
// same warp by a barrier of the warp. A barrier that some threads of a warp do not reach together,
// and a shuffle or vote whose lanes are not all there, are objections, too.
//
// Blocks run one after the other and warps in turn, both in an order that `seed` draws: races are
// found by what orders accesses, not by the order in which they happen to come.
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
  std::vector<std::byte> parameters;  // Kernel::parameter_bytes of them, laid out as it says
  uint32_t seed = 0;                  // 0: blocks and warps in ascending order
  uint64_t begin_ns = 0;              // by the device's clock
  // Numbers of blocks, x first: of a launch that is too long, those that are worth it. Empty: all.
  std::vector<uint64_t> only_blocks = {};
};

// [Note: virtual time]
// Only sleeping takes time. The device's clock stands at `begin_ns` when a warp starts, and each
// nanosleep of its lanes together moves it on by the longest of them, as long as asked for (a GPU
// sleeps up to twice as long) and at most a millisecond. A barrier of the block takes all warps to
// the latest, and the launch ends with the latest of its blocks. A kernel that reads the clock in a
// loop without sleeping does not end.

// What a launch has done. Sectors are of 32 bytes: those that the warps' accesses touched, one by
// one, and the least that as many bytes need.
struct LaunchReport {
  uint64_t instructions = 0;  // of single threads
  uint64_t loads = 0, stores = 0;
  uint64_t sectors = 0, least_sectors = 0;
  uint64_t end_ns = 0;                   // by the device's clock
  std::vector<ByteRange> read, written;  // of device memory, coalesced, in ascending order
};

// Errors: Objection naming kernel, block, thread and instruction.
LaunchReport run(const Launch& launch, DeviceMemory& memory);

}  // namespace fsdp::testing::ptx

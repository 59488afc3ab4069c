// Work that a library on the host does in place of a device. LibTorch's operators do this: their
// tensors are in simulated device memory.
//
// The host does the work at once, as if it were the next work of a stream. First, everything that
// the stream waits for runs. The calling thread does not count as having waited, so a missing wait
// is still found. Without a simulated GPU, nothing happens.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "simulator/race_check.h"

namespace fsdp::testing::sim {

class Simulation;
struct Operation;

// A scope in which the calling thread does the work and may access device memory. The ranges passed
// may include bytes outside of device and pinned memory; these are ignored. Reads of undefined
// bytes are not found, because each input of an operator counts as a whole.
class HostWork {
 public:
  // Errors: none. The simulated GPU reports them.
  HostWork(cudaStream_t stream, std::string_view name, std::span<const TouchedBytes> touched);
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  // Adds memory that the work has allocated and written, or other memory that it has accessed.
  void touched(std::span<const TouchedBytes> more);

 private:
  Simulation* simulation_ = nullptr;  // null: no simulation or no such stream
  const Operation* operation_ = nullptr;
};

// Make host memory accessible to the device as pinned memory, and end that.
void lend_memory(void* begin, int64_t bytes, const std::string& name);
void take_back_memory(void* begin);

// Registers a block that a host allocator carves out of one cudaMalloc, or out of lent memory. The
// call takes effect in the order of the stream's work, as with a caching allocator.
//
// The block counts as memory with its own name. From the first call on, only such blocks of the
// cudaMalloc count as memory. Work of another stream may access the block after it has waited for
// `stream`. kUnknown means that the host may write the block unseen, so a read of it is no error.
enum class AdoptedValue : uint8_t { kNone, kUnknown };
void adopt_memory(cudaStream_t stream, void* begin, int64_t bytes, std::string name,
                  AdoptedValue value = AdoptedValue::kNone);
// Ends a block that adopt_memory registered for `stream` on `device`. Any thread may call it, also
// one that uses another device: LibTorch's allocator frees a block on the block's own device.
void forget_memory(cudaStream_t stream, int device, void* begin, int64_t bytes);
// Records that these bytes were freed, for memory without blocks. It counts as a write by work of
// `stream`.
void note_freed(cudaStream_t stream, void* begin, int64_t bytes);

}  // namespace fsdp::testing::sim

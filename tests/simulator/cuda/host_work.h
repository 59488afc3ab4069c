// Work that a library of the host does in place of a device: LibTorch's operators, whose tensors
// are in simulated device memory.
//
// The host does it at once, as if it were the next work of a stream. Everything that the stream
// waits for runs first, but the calling thread has not waited, so a missing wait is found. Without
// a simulated GPU nothing happens.
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

// A scope in which the calling thread does the work and may access device memory. Bytes outside of
// device and pinned memory may be among the accessed ones; they are ignored. Reads of undefined
// bytes are not found, because an operator's inputs count as a whole.
class HostWork {
 public:
  // Errors: none; a simulated GPU reports them.
  HostWork(cudaStream_t stream, std::string_view name, std::span<const TouchedBytes> touched);
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  // Adds memory that the work has made and written, or further memory that it has accessed.
  void touched(std::span<const TouchedBytes> more);

 private:
  Simulation* simulation_ = nullptr;  // null: there was none, or no such stream
  const Operation* operation_ = nullptr;
};

// Makes host memory accessible to the device, as pinned memory, and ends that.
void lend_memory(void* begin, int64_t bytes, const std::string& name);
void take_back_memory(void* begin);

// Notes a part that a host allocator carves out of one cudaMalloc, or out of lent memory. Calls
// take effect in the order of the stream's work, as with a caching allocator.
//
// The part is memory with its own name. From the first call on, only such parts of the cudaMalloc
// are memory. Work of another stream may access the part once it has waited. kUnknown: the host may
// write it unseen, so reading it is no error.
enum class AdoptedValue : uint8_t { kNone, kUnknown };
void adopt_memory(cudaStream_t stream, void* begin, int64_t bytes, std::string name,
                  AdoptedValue value = AdoptedValue::kNone);
// Ends a part made by adopt_memory.
void forget_memory(cudaStream_t stream, void* begin, int64_t bytes);
// Notes that these bytes, without parts, were freed: it counts as a write by work of that stream.
void note_freed(cudaStream_t stream, void* begin, int64_t bytes);

}  // namespace fsdp::testing::sim

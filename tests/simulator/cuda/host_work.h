// Work that a library of the host does in place of a device's: LibTorch's operators, whose tensors
// lie in simulated device memory.
//
// The host does it at once, as if it were the next work of a stream: what that stream waits for is
// done first, but the calling thread has not waited, so that a wait that is missing is found.
// Without a simulated GPU all of this does nothing.
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

// From its making to its end the calling thread does the work, and may touch device memory. Bytes
// outside of device and pinned memory may be among those it touches: they are nobody's business.
// Reads of bytes that have no value are not found: an operator is told its inputs whole.
class HostWork {
 public:
  // Errors: none; what is wrong is a report of the simulated GPU.
  HostWork(cudaStream_t stream, std::string_view name, std::span<const TouchedBytes> touched);
  ~HostWork();
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  // Memory that it has made and written, or more that it has touched.
  void touched(std::span<const TouchedBytes> more);

 private:
  Simulation* simulation_ = nullptr;  // null: there was none, or no such stream
  const Operation* operation_ = nullptr;
};

// The host's memory, on which work of the device and the host's may follow each other, as pinned.
void lend_memory(void* begin, int64_t bytes, const std::string& name);
void take_back_memory(void* begin);

// What an allocator of the host carves out of one cudaMalloc, or of what it has lent. All come in
// the order of the stream's work, as a caching allocator's do.
//
// Memory with a name of its own. From the first call on, only such parts of the cudaMalloc are
// memory. For work of another stream it is there when that has waited. kUnknown: somebody may write
// it who does not tell, so that a read of it is no objection.
enum class AdoptedValue : uint8_t { kNone, kUnknown };
void adopt_memory(cudaStream_t stream, void* begin, int64_t bytes, std::string name,
                  AdoptedValue value = AdoptedValue::kNone);
// What adopt_memory was given is memory no more.
void forget_memory(cudaStream_t stream, void* begin, int64_t bytes);
// These bytes are anybody's again, without parts: as if that stream's work wrote them.
void note_freed(cudaStream_t stream, void* begin, int64_t bytes);

}  // namespace fsdp::testing::sim

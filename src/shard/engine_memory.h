// EngineMemory allocates an engine's device memory, counts it, and rejects allocations that exceed
// a limit.
#pragma once

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "memory/memory_ledger.h"
#include "shard/buffer_pool.h"
#include "shard/comm_streams.h"
#include "shard/communicators.h"

namespace fsdp {

// A buffer from a mesh's communicator. It may outlive the engine, because users' tensors share it.
struct MeshBuffer {
  MeshBuffer(Mesh of, Buffer memory) : mesh(std::move(of)), buffer(std::move(memory)) {}
  Mesh mesh;  // declared first, so destroyed last
  Buffer buffer;
};

class EngineMemory {
 public:
  // All arguments must outlive this object.
  EngineMemory(const Mesh& mesh, const Options& options, const Communicators& comms,
               CommStreams& streams);
  ~EngineMemory();
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // These functions allocate zeroed memory. If the device has no memory left, each of these
  // functions empties LibTorch's cache (torch_cuda::empty_cache) and tries the allocation once
  // more. Errors: those of Device::allocate and of MemoryMeter::take.
  Buffer allocate(int64_t bytes) const;             // readable by peers; may outlive the engine
  Buffer allocate_slot(int64_t bytes) const;        // gathers write it
  Buffer allocate_for_reduce(int64_t bytes) const;  // reductions read and write it
  Buffer allocate_own(int64_t bytes) const;         // no other rank reads it
  // Allocates pinned host memory for copies of main state. On the CPU the meter counts it.
  Buffer allocate_staging(int64_t bytes) const;

  // Returns Options::memory_limit with the meter that counts the bytes against it. All engines of
  // the mesh share both. The meter is null if there is no limit.
  const MemoryCap& cap() const { return *cap_; }
  // Makes this engine's meter count the memory that LibTorch allocates in the calling thread from
  // now on. Does nothing without a limit or on a GPU.
  void count_thread() const;
  // Checks LibTorch's bytes against the limit. Called at the boundaries of units on a GPU, because
  // LibTorch's allocator for GPUs does not check the limit itself. Errors: those of
  // MemoryMeter::take.
  void check_limit() const;

  MemoryLedger ledger;  // bytes of the device
  MemoryLedger
      host_ledger;  // bytes of the host, if the device is another one or main state offloads
  BufferPool parameter_slots;
  BufferPool reduce_slots;

 private:
  Buffer counted(int64_t bytes, const std::function<Buffer()>& allocate) const;
  void observe_torch(int64_t wanted) const;

  const Mesh& mesh_;
  const Communicators& comms_;
  const CommStreams& streams_;
  const std::shared_ptr<const MemoryCap> cap_;  // shared with the mesh's other engines
  // The meter of the cap. If there is no limit, this is the meter of the thread that made the
  // engine, or null if that thread has no meter. The buffers that the meter has counted share it.
  const std::shared_ptr<MemoryMeter> meter_;
};

}  // namespace fsdp

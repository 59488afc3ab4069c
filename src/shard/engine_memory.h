// EngineMemory allocates an engine's device memory, counts it, and refuses what exceeds a limit.
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

// A buffer from a mesh's communicator that may outlive the engine, because users' tensors share it.
struct MeshBuffer {
  MeshBuffer(Mesh of, Buffer memory) : mesh(std::move(of)), buffer(std::move(memory)) {}
  Mesh mesh;  // first, hence destroyed last
  Buffer buffer;
};

class EngineMemory {
 public:
  // Requires: the arguments live as long.
  EngineMemory(const Mesh& mesh, const Options& options, const Communicators& comms,
               CommStreams& streams);
  ~EngineMemory();
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // Allocate zeroed memory. If the device has none left, LibTorch's cache is emptied
  // (torch_cuda::empty_cache) and the allocation is tried once more.
  // Errors: as Device::allocate, and as MemoryMeter::take.
  Buffer allocate(int64_t bytes) const;             // readable by peers; may outlive the engine
  Buffer allocate_slot(int64_t bytes) const;        // gathers write it
  Buffer allocate_for_reduce(int64_t bytes) const;  // reductions read and write it
  Buffer allocate_own(int64_t bytes) const;         // no other rank reads it

  // Returns Options::memory_limit, shared by the mesh's engines, and its meter, null if there is no
  // limit.
  const MemoryCap& cap() const { return *cap_; }
  // Counts what LibTorch allocates in the calling thread from now on for this engine. No effect
  // without a limit, or on a GPU.
  void count_thread() const;
  // Checks LibTorch's bytes against the limit. Called at the boundaries of units on a GPU, where
  // LibTorch's allocator refuses nothing itself. Errors: as MemoryMeter::take.
  void check_limit() const;

  MemoryLedger ledger;
  BufferPool parameter_slots;
  BufferPool reduce_slots;

 private:
  Buffer counted(int64_t bytes, const std::function<Buffer()>& allocate) const;
  void observe_torch(int64_t wanted) const;

  const Mesh& mesh_;
  const Communicators& comms_;
  const CommStreams& streams_;
  const std::shared_ptr<const MemoryCap> cap_;  // shared with the mesh's other engines
  // The cap's meter; without a limit the one of the thread that made this engine, if it has one.
  // Shared with the buffers that it has counted.
  const std::shared_ptr<MemoryMeter> meter_;
};

}  // namespace fsdp

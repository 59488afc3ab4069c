// The device's memory of an engine: what it takes is counted, and refused beyond a limit.
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

// Memory of a mesh's communicator for those who may hold it longer than the engine.
struct MeshBuffer {
  MeshBuffer(Mesh of, Buffer memory) : mesh(std::move(of)), buffer(std::move(memory)) {}
  Mesh mesh;  // first, hence destroyed last
  Buffer buffer;
};

class EngineMemory {
 public:
  // Those given live as long.
  EngineMemory(const Mesh& mesh, const Options& options, const Communicators& comms,
               CommStreams& streams);
  ~EngineMemory();
  EngineMemory(const EngineMemory&) = delete;
  EngineMemory& operator=(const EngineMemory&) = delete;

  // Memory that peers can read where that helps, which may outlive the engine; for slots; for
  // gradients; and what no other rank reads. Where a device has none left, LibTorch gives back what
  // it keeps for later (torch_cuda::empty_cache), and it is tried once more. Errors: as
  // Device::allocate, and as MemoryMeter::take.
  Buffer allocate(int64_t bytes) const;
  Buffer allocate_slot(int64_t bytes) const;
  Buffer allocate_for_reduce(int64_t bytes) const;
  Buffer allocate_own(int64_t bytes) const;

  // Options::memory_limit, as the mesh's engines have it; without a limit it has no meter.
  const MemoryCap& cap() const { return *cap_; }
  // The calling thread works for this engine from now on: what LibTorch gives it counts. Nothing
  // without a limit.
  void count_thread() const;
  // On a GPU LibTorch's allocator refuses nothing by itself: at the boundaries of units it is asked
  // what it holds. Errors: as MemoryMeter::take.
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
  // The cap's; without a limit that of the thread which has made this, if it measures. Shared with
  // the buffers that it has counted.
  const std::shared_ptr<MemoryMeter> meter_;
};

}  // namespace fsdp

// MainPlace represents the location of main shards, main gradients and optimizer state, which is
// the device or the host. It also performs the transfers between this location and the device.
//
// [Note: main state on the host] With Options::cpu_offload, main shards, main gradients and
// optimizer state are in pinned memory of the host. Values that are computed from them alone are
// there as well: norm, clip coefficient, step counters, digests. Two streams of the device do the
// transfers, concurrently with collectives and compute. `upload` copies a rank's piece into the
// memory in which the parameters are gathered in place. `download` adds reduced gradients to the
// main gradients. Norms and optimizers are kernels of the host. After settle() the calling thread
// runs them at once on stream(). Without offload everything is on the device, and stream() is
// compute.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "shard/engine_memory.h"

namespace fsdp {

class MainPlace {
 public:
  // Returns a MainPlace for main state on the device or, with Options::cpu_offload, on the host.
  // All arguments must outlive the result.
  static std::unique_ptr<MainPlace> make(const Mesh& mesh, const Options& options,
                                         CommStreams& streams, EngineMemory& memory);
  virtual ~MainPlace() = default;
  MainPlace(const MainPlace&) = delete;
  MainPlace& operator=(const MainPlace&) = delete;

  virtual bool is_host() const = 0;
  virtual at::Device torch_device() const = 0;
  // Returns the stream on which norms and optimizers run.
  virtual Stream& stream() const = 0;
  virtual MemoryLedger& ledger() = 0;
  // The first function allocates memory for main shards and the second one for main gradients. The
  // third one allocates memory for other main state, which no other rank reads.
  virtual Buffer allocate(int64_t bytes) const = 0;
  virtual Buffer allocate_gradients(int64_t bytes) const = 0;
  virtual Buffer allocate_own(int64_t bytes) const = 0;
  // Blocks the host until work on stream() may read and write main state.
  virtual void settle() const = 0;
  // Blocks the host until work on stream() may read all values that the compute stream has written.
  virtual void settle_compute() const = 0;

  // Casts or copies contiguous runs of main shards to the device, before the gather stream's next
  // collective. `unit` names the unit in trace spans.
  virtual void send(const std::vector<kernels::CastRun>& runs, std::string_view unit) = 0;
  // Adds or copies sums that the reduce stream has computed to the main gradients. `unit` has the
  // same meaning as for send.
  virtual void take(const std::vector<kernels::AccumulateRun>& runs, std::string_view unit) = 0;
  // Returns the stream for updates of main state inside a backward. Its later work begins after all
  // reductions and unused gathers that were issued before this call. With offload, blocks the host
  // until they are done.
  virtual Stream& update_stream() const = 0;
  // Returns the stream that is the last to write main gradients.
  virtual Stream& last_of_reduce() const = 0;
  // Makes the reduce stream wait until all sums passed to take() are in the main gradients (wait
  // 20).
  virtual void reduce_after_takes() const = 0;

  BufferPool gradients;

 protected:
  MainPlace(CommStreams& streams, EngineMemory& memory, MemoryLedger& ledger);

  CommStreams& streams_;
  EngineMemory& memory_;
};

}  // namespace fsdp

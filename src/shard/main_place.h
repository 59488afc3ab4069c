// Where main shards, main gradients and optimizer state lie, and how they get to the device and
// back.
//
// [Note: main state on the host]
// With Options::cpu_offload main shards, main gradients and optimizer state lie in pinned memory
// of the host, and so does what is computed of them alone: norm, clip coefficient, step counters,
// digests. Two streams of the device carry them: `upload` brings a rank's piece to where it is
// gathered in place, `download` takes what was reduced to the main gradient, beside collectives
// and compute. Norms and optimizers are kernels of the host, run at once by the calling thread
// (stream()) after settle(). Else all is the device's, and stream() is compute.
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
  // On the device, or with Options::cpu_offload on the host. Those given live as long.
  static std::unique_ptr<MainPlace> make(const Mesh& mesh, const Options& options,
                                         CommStreams& streams, EngineMemory& memory);
  virtual ~MainPlace() = default;
  MainPlace(const MainPlace&) = delete;
  MainPlace& operator=(const MainPlace&) = delete;

  virtual bool is_host() const = 0;
  virtual at::Device torch_device() const = 0;
  // On which norms and optimizers run.
  virtual Stream& stream() const = 0;
  virtual MemoryLedger& ledger() = 0;
  // For main shards; for main gradients; and for what goes with them and no other rank reads.
  virtual Buffer allocate(int64_t bytes) const = 0;
  virtual Buffer allocate_gradients(int64_t bytes) const = 0;
  virtual Buffer allocate_own(int64_t bytes) const = 0;
  // Blocks until main state may be read and written by stream().
  virtual void settle() const = 0;
  // Blocks until stream() may read what compute has written of it.
  virtual void settle_compute() const = 0;

  // Casts or copies runs of main shards to the device; the gather stream's next collective finds
  // them there. `unit`: for spans.
  virtual void send(const std::vector<kernels::CastRun>& runs, std::string_view unit) = 0;
  // Adds or copies sums on the reduce stream to main gradients.
  virtual void take(const std::vector<kernels::AccumulateRun>& runs, std::string_view unit) = 0;
  // On which sums reach main gradients last.
  virtual Stream& last_of_reduce() const = 0;
  // Lets the reduce stream wait until what was taken is in the main gradients.
  virtual void reduce_after_takes() const = 0;

  BufferPool gradients;

 protected:
  MainPlace(CommStreams& streams, EngineMemory& memory, MemoryLedger& ledger);

  CommStreams& streams_;
  EngineMemory& memory_;
};

}  // namespace fsdp

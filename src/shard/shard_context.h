// What all units of an engine share: the streams and communicators their bytes travel on, the pools
// they borrow from, and the types they travel in.
#pragma once

#include <c10/core/Device.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/traffic.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/code_place.h"
#include "comm/mesh_state.h"
#include "comm/ranks_view.h"
#include "libtorch/torch_cuda.h"
#include "plan/placement.h"
#include "runtime/span_log.h"
#include "runtime/stream.h"
#include "shard/buffer_pool.h"
#include "shard/memory_ledger.h"

namespace fsdp {

// Memory of a mesh's communicator for those who may hold it longer than the engine.
struct MeshBuffer {
  MeshBuffer(Mesh of, Buffer memory) : mesh(std::move(of)), buffer(std::move(memory)) {}
  Mesh mesh;  // first, hence destroyed last
  Buffer buffer;
};

struct ContextSpan {
  torch_cuda::NamedRange range;
  StreamSpan span;
};

class ShardContext {
 public:
  ShardContext(Mesh mesh, const Options& options);
  ~ShardContext();
  ShardContext(const ShardContext&) = delete;
  ShardContext& operator=(const ShardContext&) = delete;

  bool one_rank() const { return mesh.world_size() == 1; }

  Communicator& gather(Axis axis = Axis::kWorld) const {
    return windows_ ? *windows_ : mesh.state().gather_communicator(axis);
  }
  Communicator& reduce(Axis axis = Axis::kWorld) const {
    return mesh.state().reduce_communicator(axis);
  }
  // What Options::nccl_registration asks for: slots that are taken from now on are registered with
  // the engine's own communicator, which gathers. Collective, before the first gather.
  // Errors: InvalidArgument, on all ranks, where it cannot be.
  void gather_into_windows(const Options& options);
  // A gather sends what lies in the slot, too: this rank's shard is copied there first.
  bool gathers_in_place() const { return offloads() || windows_ != nullptr; }

  // Memory that peers can read where that helps, which may outlive the engine; for slots; for
  // gradients; and what no other rank reads. Where a device has none left, LibTorch gives back what
  // it keeps for later (torch_cuda::empty_cache), and it is tried once more. Errors: as
  // Device::allocate, and as MemoryMeter::take.
  Buffer allocate(int64_t bytes) const;
  Buffer allocate_slot(int64_t bytes) const;
  Buffer allocate_for_reduce(int64_t bytes) const;
  Buffer allocate_own(int64_t bytes) const;

  // [Note: main state on the host]
  // With Options::cpu_offload main shards, main gradients and optimizer state lie in pinned memory
  // of the host, and so does what is computed of them alone: norm, clip coefficient, step counters,
  // digests. Two streams of the device carry them: `upload` brings a rank's piece to where it is
  // gathered in place, `download` takes what was reduced to the main gradient, beside collectives
  // and compute. Norms and optimizers are kernels of the host, run at once by the calling thread
  // (main_stream) after settle_transfers. Else all is the device's, and main_stream is compute.
  bool offloads() const { return upload_stream != nullptr; }
  Stream& main_stream() const;
  at::Device main_torch_device() const { return offloads() ? at::Device(at::kCPU) : torch_device; }
  MemoryLedger& main_ledger() { return offloads() ? host_ledger : ledger; }
  // For main shards; and for what goes with them and no other rank reads.
  Buffer allocate_main(int64_t bytes) const;
  Buffer allocate_main_own(int64_t bytes) const;
  // Blocks until main state may be read and written by the host. Nothing where it is the device's.
  void settle_transfers() const;
  // On which sums reach main gradients last.
  Stream& last_of_reduce() const { return offloads() ? *download_stream : *reduce_stream; }

  // Options::memory_limit, as the mesh's engines have it; without a limit it has no meter.
  const MemoryCap& cap() const { return *cap_; }
  // The calling thread works for this engine from now on: what LibTorch gives it counts. Nothing
  // without a limit.
  void count_thread() const;
  // On a GPU LibTorch's allocator refuses nothing by itself: at the boundaries of units it is asked
  // what it holds. Errors: as MemoryMeter::take.
  void check_limit() const;

  // [Note: reading mapped shards]
  // A unit whose ranks' shards are mapped side by side is unsharded without a collective: forward
  // and backward read peers' shards where they lie. So nobody may write a shard while somebody
  // reads: all ranks meet before the first read of a forward or backward, when what they wrote is
  // written, and after its last, before the caller can write again. Both are collective.
  // Empty where the ranks' shards are gathered instead.
  RanksView map_ranks(void* mine, int64_t bytes, Axis axis);
  void begin_reading();
  void end_reading();

  // Gathers from now on come after what compute was given so far: those between passes call it, in
  // a pass its begin has (wait 1).
  void gather_after_compute();
  // What gathers write, from here on, comes after the event.
  void gather_after(const Event& event, CodePlace place = CodePlace::current()) const;

  // A gather that nobody has waited for (it was ahead of a use that did not come) may still read
  // main shards when its unit is resharded. Compute waits for such at the end of the forward or
  // backward, before anybody writes main shards. (What a unit that stays seated between the two has
  // gathered and not used is given back at the next forward, and its values with it.)
  void leave_gather() { has_left_gathers_ = true; }
  void wait_for_left_gathers();

  // Of a unit with this strategy.
  Moves moves_for(Strategy of) const {
    return moves_of(placements_of(of), mesh.state().shape(), offloads());
  }

  // By what gradients are multiplied when they are captured: what they were scaled by on the way
  // (LossScaler) goes here, too.
  float capture_scale() const { return divide_scale / loss_scale_.value_or(1.0F); }
  bool has_loss_scale() const { return loss_scale_.has_value(); }
  void set_loss_scale(std::optional<float> scale) { loss_scale_ = scale; }

  // The tag of a unit's next collective.
  CollectiveTag next_tag(Operation operation, int64_t numel, std::string_view unit) const {
    return mesh.state().order().next(operation, numel, unit.empty() ? "(root)" : unit);
  }

  // Calls `issue` and blocks until the stream has done it and everything before, even where either
  // throws: what they work on goes next, memory of LibTorch's, say, over which this rank or a peer
  // may have begun a collective. Errors: those of `issue`; as Stream::synchronize.
  void settle(Stream& stream, const std::function<void()>& issue) const;
  // Blocks until the streams have done everything issued; what they threw was or is heard of
  // elsewhere. Before memory that they may still read is given back.
  void finish() noexcept;

  const Mesh mesh;
  const Device& device;
  const at::Device torch_device;  // the same, as LibTorch knows it
  const Strategy strategy;        // of units that have none of their own
  const DType reduce_dtype;
  const ReduceOp reduce_op;
  // By what gradients are divided before they are summed: gradient_divide_factor, or the ranks
  // where the communicator sums only (Communicator::divides); else 1.
  const float divide_scale;
  const bool debug;

 private:
  std::unique_ptr<Communicator> windows_;  // of gathers; null: the mesh's. Slots go before it

 public:
  SpanLog spans;  // above the streams, whose last work writes here
  MemoryLedger ledger{&spans};
  MemoryLedger host_ledger;  // of main state where it is on the host
  BufferPool parameter_slots;
  BufferPool reduce_slots;
  BufferPool main_gradients;

  Stream* compute;  // on which LibTorch's operators run; the device's
  // Whether it is the calling thread's current stream.
  bool computes_here() const;
  // LibTorch's current stream may be another one than at the last forward: it takes over, in order.
  // Autograd runs a node on the stream of its forward, so that a backward may have another one than
  // the calls before and after it.
  void follow_compute();
  // [Note: where autograd adds] LibTorch adds up what several operators give a parameter on the
  // stream that was current when its accumulator was made, at the engine's construction; that may
  // be another one than the forward's. Before a gradient is captured.
  void wait_for_autograd();
  // The mesh's, shared by its engines: what is queued here is idle only after finish().
  std::shared_ptr<Stream> gather_stream;
  std::shared_ptr<Stream> reduce_stream;
  // Null where main state is not on the host.
  const std::unique_ptr<Stream> upload_stream;
  const std::unique_ptr<Stream> download_stream;

  // What `subject` does on a stream until the span is destroyed, for a trace and for profilers.
  ContextSpan span(Stream& stream, std::string_view what, std::string_view subject) {
    const SpanLane lane = &stream == gather_stream.get()     ? SpanLane::kGather
                          : &stream == reduce_stream.get()   ? SpanLane::kReduce
                          : &stream == upload_stream.get()   ? SpanLane::kUpload
                          : &stream == download_stream.get() ? SpanLane::kDownload
                                                             : SpanLane::kCompute;
    return {{torch_device, what, subject}, {spans, stream, lane, what, subject}};
  }

  // [Note: lent gradients] in gradient_places.h. The last two reductions of such; the next one is
  // recorded at `lent_turn`. Compute waits there for the older one before it makes another, so that
  // no more than two stand whole.
  std::array<Event, 2> lent_reduced{Event(device), Event(device)};
  int lent_turn = 0;
  // On a device: what they lie in. The host runs ahead of the device, so whoever waited for a
  // reduction to end before it gave memory back would hold many.
  std::array<std::vector<std::shared_ptr<const void>>, 2> lent_held;

  // The trap is armed: what is handed out of main shards and main gradients is watched.
  bool watches_shards = false;

  int64_t all_gathers = 0;
  int64_t reduces = 0;
  Traffic sent;
  // A collective of a unit that is issued.
  void count_sent(const Move& move, std::span<const CollectivePart> parts);
  int64_t exposed_comm_ns = 0;

 private:
  ShardContext(Mesh mesh, const Options& options, MeshStreams streams);
  void meet(std::string_view purpose);
  Buffer counted(int64_t bytes, const std::function<Buffer()>& allocate) const;
  void observe_torch(int64_t wanted) const;

  const std::shared_ptr<const MemoryCap> cap_;  // shared with the mesh's other engines
  // The cap's; without a limit that of the thread which has made this, if it measures. Shared with
  // the buffers that it has counted.
  const std::shared_ptr<MemoryMeter> meter_;
  std::optional<float> loss_scale_;  // a LossScaler's
  const bool map_shards_;
  std::optional<Axis> reads_peers_;  // some unit is mapped: over whom
  bool has_left_gathers_ = false;
};

// Adds the time until destruction to the exposed communication: compute waits for it. Where compute
// is the calling thread the clock tells; where it is a stream of a device, the stream, and only
// while somebody records spans.
class ExposedTimer {
 public:
  explicit ExposedTimer(ShardContext& context);
  ~ExposedTimer();
  ExposedTimer(const ExposedTimer&) = delete;
  ExposedTimer& operator=(const ExposedTimer&) = delete;

 private:
  ShardContext& context_;
  const bool is_inline_;
  int64_t start_ns_ = 0;
  std::shared_ptr<int64_t> began_ns_;  // shared with the stream's work; null where it tells no time
};

}  // namespace fsdp

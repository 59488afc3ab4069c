#include "shard/engine_memory.h"

#include <fmt/format.h>

#include <cstring>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "libtorch/torch_cuda.h"
#include "libtorch/torch_memory.h"
#include "memory/memory_meter.h"
#include "runtime/out_of_memory.h"

namespace fsdp {
namespace {

// On an inline stream, the work on a slot is done when the slot is released, so the slot released
// last is the best: it is warm in the cache. A stream that is not inline may still use a released
// slot. There the work on the slot released first is most likely done.
SlotReuse reuse_of(const Stream& stream) {
  return stream.is_inline() ? SlotReuse::kLastReturned : SlotReuse::kFirstReturned;
}

// Calls `allocate`. If the device has no memory left, frees the blocks that LibTorch's allocator
// caches and calls `allocate` once more.
template <class Allocate>
Buffer with_cache_emptied(const Allocate& allocate) {
  try {
    return allocate();
  } catch (const OutOfMemory&) {
    if (!torch_cuda::empty_cache()) throw;
  }
  return allocate();
}

std::shared_ptr<const MemoryCap> cap_of(const Mesh& mesh, const Options& options) {
  const MeshParts& parts = state_of(mesh).parts();
  if (options.memory_limit > 0 && parts.shares_device && parts.device->name() != "cpu") {
    throw InvalidArgument(
        {.what = fmt::format("memory_limit is set, but ranks share {}", parts.device->name()),
         .where = "Options::memory_limit",
         .cause = "LibTorch's allocator counts by device, not by rank",
         .hint = "leave memory_limit at 0, or start one rank per device"});
  }
  return state_of(mesh).memory_budget().cap(options.memory_limit);
}

// Throws the error of an allocation that exceeds the memory limit while a model is built. A smaller
// batch would not help then, because the limit is too small for the model itself. So this is an
// error of the configuration and not a DeviceError.
void refuse_while_building(const MemoryDemand& demand) {
  throw InvalidArgument(
      {.what = fmt::format("the memory limit of {} is too low to build the model",
                           format_bytes(demand.limit)),
       .where = "Options::memory_limit",
       .cause =
           fmt::format("an allocation needs {}, while {} are already held, {} of them by LibTorch",
                       format_bytes(demand.bytes), format_bytes(demand.now.total()),
                       format_bytes(demand.now.torch)),
       .hint =
           "raise the limit, use more ranks, or use smaller units; with a BuildScope, this rank's "
           "shards and one whole unit must fit; without a BuildScope, the whole model must fit"});
}

}  // namespace

EngineMemory::EngineMemory(const Mesh& mesh, const Options& options, const Communicators& comms,
                           CommStreams& streams)
    : ledger(&streams.spans),
      parameter_slots(streams.device, MemoryCategory::kParameterSlots, ledger,
                      reuse_of(*streams.gather),
                      [this](int64_t bytes) { return allocate_slot(bytes); }),
      reduce_slots(streams.device, MemoryCategory::kReduceSlots, ledger, reuse_of(*streams.reduce),
                   [this](int64_t bytes) { return allocate_for_reduce(bytes); }),
      mesh_(mesh),
      comms_(comms),
      streams_(streams),
      cap_(cap_of(mesh, options)),
      meter_(cap_->meter ? cap_->meter : torch_memory::current_meter()) {
  if (streams.torch_device.is_cpu()) torch_memory::install();
  if (!cap_->meter) return;
  if (streams.torch_device.is_cuda()) {
    // The call throws now if LibTorch's allocator does not report its bytes. Without these bytes
    // the limit would have no effect.
    static_cast<void>(torch_cuda::held_bytes(streams.torch_device));
  }
  // An earlier engine of the mesh may have set a function that refuses allocations. It is kept,
  // because its errors name units, and those of refuse_while_building do not.
  if (!cap_->meter->has_refusal()) cap_->meter->set_refusal(refuse_while_building);
  count_thread();
}

EngineMemory::~EngineMemory() {
  // If other engines of the mesh exist, this thread's memory must still be counted by the meter,
  // which they share.
  const bool is_last = cap_.use_count() == 1;
  if (is_last && cap_->meter && torch_memory::current_meter() == cap_->meter) {
    torch_memory::set_current_meter(nullptr);
  }
}

// The memory does not come from comms_, because the communicator for registered slots is destroyed
// with the engine. This memory may outlive the engine.
Buffer EngineMemory::allocate(int64_t bytes) const {
  return counted(bytes,
                 [&] { return state_of(mesh_).gather_communicator(Axis::kWorld).allocate(bytes); });
}

Buffer EngineMemory::allocate_slot(int64_t bytes) const {
  return counted(bytes, [&] { return comms_.gather().allocate(bytes); });
}

Buffer EngineMemory::allocate_for_reduce(int64_t bytes) const {
  return counted(bytes, [&] { return comms_.reduce().allocate(bytes); });
}

Buffer EngineMemory::allocate_own(int64_t bytes) const {
  return counted(bytes, [&] { return streams_.device.allocate(bytes, MemoryKind::kDevice); });
}

// The whole memory is written once, because the first access to a page takes about twenty times as
// long as a copy into it.
Buffer EngineMemory::allocate_staging(int64_t bytes) const {
  const auto allocate = [&] {
    Buffer staging = streams_.device.allocate(bytes, MemoryKind::kPinned);
    std::memset(staging.data(), 0, static_cast<size_t>(staging.bytes()));
    return staging;
  };
  return streams_.device_is_host() ? counted(bytes, allocate) : allocate();
}

Buffer EngineMemory::counted(int64_t bytes, const std::function<Buffer()>& allocate) const {
  // On a GPU the meter reads LibTorch's bytes only here and at the boundaries of units.
  observe_torch(bytes);
  return with_cache_emptied([&] { return metered(meter_, bytes, allocate); });
}

// LibTorch's cached blocks count as allocated. They are freed only if `wanted` more bytes would
// exceed the limit, because LibTorch must then allocate from the device again.
void EngineMemory::observe_torch(int64_t wanted) const {
  if (!cap_->meter || !streams_.torch_device.is_cuda()) return;
  MemoryMeter& meter = *cap_->meter;
  meter.observe_torch(torch_cuda::held_bytes(streams_.torch_device));
  if (meter.reading().now.total() + wanted <= cap_->limit || !torch_cuda::empty_cache()) return;
  meter.observe_torch(torch_cuda::held_bytes(streams_.torch_device));
}

void EngineMemory::check_limit() const {
  if (!cap_->meter || !streams_.torch_device.is_cuda()) return;
  observe_torch(0);
  cap_->meter->take(MemoryOwner::kEngine, 0);  // throws if the observed bytes exceed the limit
}

void EngineMemory::count_thread() const {
  if (!cap_->meter || streams_.torch_device.is_cuda()) return;
  if (torch_memory::current_meter() != cap_->meter) torch_memory::set_current_meter(cap_->meter);
}

}  // namespace fsdp

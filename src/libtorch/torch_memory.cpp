#include "libtorch/torch_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/heap.h"

namespace fsdp::torch_memory {
namespace {

// An allocator that keeps its large blocks for the next step (kept_block). It reports blocks to
// LibTorch's profiler, as LibTorch's own allocator does.
class KeepingHost final : public c10::Allocator {
 public:
  static KeepingHost& instance() {
    static auto* const allocator = new KeepingHost;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* const block = kept_block(bytes);
    if (block == nullptr) return below_->allocate(bytes);
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    below_->copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* block) {
    if (give_kept_block(block)) {
      c10::profiledCPUMemoryReporter().Delete(block);
    } else {
      instance().below_->raw_deleter()(block);
    }
  }

  c10::Allocator* const below_ = c10::GetDefaultCPUAllocator();
};

// Returns the allocator below the counting allocator. Another library's allocator is used
// unchanged, because nothing is known about its blocks.
c10::Allocator* host_blocks() {
  c10::Allocator* const current = c10::GetAllocator(c10::kCPU);
  return current == c10::GetDefaultCPUAllocator() ? &KeepingHost::instance() : current;
}

// The meter of the calling thread. It is a plain pointer, because a thread may still allocate after
// the destructors of its thread_local objects have run.
thread_local MemoryMeter* counting = nullptr;

// Owns the calling thread's meter. Resets `counting` when the thread ends.
struct ThreadMeter {
  ~ThreadMeter() { counting = nullptr; }
  std::shared_ptr<MemoryMeter> meter;
};

ThreadMeter& of_thread() {
  thread_local ThreadMeter meter;
  return meter;
}

// The count of one block. The meter includes the block as long as this object exists.
// Errors: those of MemoryMeter::take.
class Counted {
 public:
  Counted(MemoryMeter& meter, size_t bytes)
      : meter_(meter.shared_from_this()), bytes_(static_cast<int64_t>(bytes)) {
    meter_->take(MemoryOwner::kTorch, bytes_);
  }
  ~Counted() {
    if (meter_) meter_->give(MemoryOwner::kTorch, bytes_);
  }
  Counted(Counted&&) noexcept = default;
  Counted& operator=(Counted&&) = delete;

 private:
  std::shared_ptr<MemoryMeter> meter_;
  int64_t bytes_;
};

// A counted block.
struct Block {
  Counted counted;    // declared first: destroyed after `from` has freed the memory
  c10::DataPtr from;  // memory of the allocator below
};

// The counted blocks that are in use, by address. The table is divided into several tables with
// separate locks, so that thread ranks seldom wait for each other.
class BlocksOut {
 public:
  void add(void* data, Block block) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    part.blocks.emplace(data, std::move(block));
  }

  // Removes the block from the table and returns it, so that the caller frees it outside the lock.
  // Empty if the block was not counted.
  std::optional<Block> take(void* data) {
    Part& part = part_of(data);
    const std::lock_guard lock(part.mutex);
    const auto found = part.blocks.find(data);
    if (found == part.blocks.end()) return std::nullopt;
    Block block = std::move(found->second);
    part.blocks.erase(found);
    return block;
  }

 private:
  struct Part {
    std::mutex mutex;
    std::unordered_map<void*, Block> blocks;
  };

  // LibTorch aligns blocks to 64 bytes, so the six lowest bits of an address are always zero and do
  // not help to choose a part.
  Part& part_of(void* data) {
    return parts_[(reinterpret_cast<uintptr_t>(data) >> 6) % parts_.size()];
  }

  std::array<Part, 16> parts_;
};

// The counting allocator for the CPU ([Note: counting allocator]).
class CountingHost final : public c10::Allocator {
 public:
  // The allocator is never destroyed, because tensors may outlive static objects.
  static CountingHost& instance() {
    static auto* const allocator = new CountingHost;
    return *allocator;
  }

  // Sets the allocator to which this one forwards. Requires: LibTorch does not use this counting
  // allocator yet.
  void lie_over(c10::Allocator* below) { below_.store(below); }

  c10::DataPtr allocate(size_t bytes) override {
    if (counting == nullptr || bytes == 0) return below().allocate(bytes);
    // The block is counted before it is allocated. If the meter's limit is exceeded, the allocator
    // below is not called.
    Counted counted(*counting, bytes);
    c10::DataPtr block = below().allocate(bytes);
    void* const data = block.get();
    const c10::Device device = block.device();
    out_.add(data, {std::move(counted), std::move(block)});
    return {data, data, &give_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    below().copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* data) {
    CountingHost& self = instance();
    // A block that was allocated before the install or by a thread without a meter is not in the
    // table. It is freed by the allocator below.
    if (const std::optional<Block> block = self.out_.take(data)) return;
    self.below().raw_deleter()(data);
  }

  c10::Allocator& below() const { return *below_.load(std::memory_order_acquire); }

  std::atomic<c10::Allocator*> below_ = nullptr;
  BlocksOut out_;
};

// The counting allocator for meta tensors. Meta tensors have no block, so the DataPtr has the
// Counted object as its context.
class CountingMeta final : public c10::Allocator {
 public:
  static CountingMeta& instance() {
    static auto* const allocator = new CountingMeta;
    return *allocator;
  }

  void lie_over(c10::Allocator* below) { below_.store(below); }

  c10::DataPtr allocate(size_t bytes) override {
    if (counting == nullptr || bytes == 0) {
      return below_.load(std::memory_order_acquire)->allocate(bytes);
    }
    auto counted = std::make_unique<Counted>(*counting, bytes);
    return {nullptr, counted.release(), &give_back, c10::Device(c10::kMeta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, size_t /*bytes*/) const override {}

 private:
  static void give_back(void* counted) { delete static_cast<Counted*>(counted); }

  std::atomic<c10::Allocator*> below_ = nullptr;
};

// Makes the allocators during static initialisation, before other threads exist. LibTorch publishes
// an allocator through a plain pointer, which other threads may read while they allocate.
const bool are_made = [] {
  KeepingHost::instance();
  CountingHost::instance();
  CountingMeta::instance();
  return true;
}();

}  // namespace

void install() {
  static const bool installed = [] {
    // The priority is higher than that of LibTorch's own allocators. So an allocator that LibTorch
    // registers later does not replace the counting allocators.
    constexpr uint8_t kPriority = 200;
    CountingHost::instance().lie_over(host_blocks());
    CountingMeta::instance().lie_over(c10::GetAllocator(c10::kMeta));
    c10::SetAllocator(c10::kCPU, &CountingHost::instance(), kPriority);
    c10::SetAllocator(c10::kMeta, &CountingMeta::instance(), kPriority);
    return true;
  }();
  static_cast<void>(installed);
}

const std::shared_ptr<MemoryMeter>& current_meter() { return of_thread().meter; }

void set_current_meter(std::shared_ptr<MemoryMeter> meter) {
  if (meter != nullptr) install();
  counting = meter.get();
  of_thread().meter = std::move(meter);
}

MeterScope::MeterScope(std::shared_ptr<MemoryMeter> meter) : before_(current_meter()) {
  set_current_meter(std::move(meter));
}

MeterScope::~MeterScope() { set_current_meter(std::move(before_)); }

}  // namespace fsdp::torch_memory

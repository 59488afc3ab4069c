#include "simulator/torch/torch_memory.h"

#include <c10/core/Allocator.h>

#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/buffer.h"
#include "simulator/cuda/host_work.h"
#include "simulator/torch/simulated_device.h"

namespace fsdp::testing {

// [Note: an arena that is not guarded] The arena behaves like pinned memory: kernels may access it,
// and the order of work on it is checked. But its pages stay open to the host, because LibTorch's
// host functions (torch::tensor) write new tensors outside of operators.
class TorchMemoryOfThread::Blocks {
 public:
  Blocks() { sim::lend_memory(arena_.data(), arena_.bytes(), "LibTorch's arena"); }

  void* take(int64_t bytes, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    // A block is reused only for the same stream and size, as LibTorch's caching allocator does for
    // one stream.
    std::vector<void*>& free = free_[{stream, bytes}];
    void* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      if (used_ + bytes > kArenaBytes) throw std::bad_alloc();
      block = arena_.at(used_);
      used_ += bytes + kAlignment;  // the gap between blocks belongs to no block
    }
    // The value is unknown, because LibTorch's host functions (torch::tensor) write outside of
    // operators, unseen.
    sim::adopt_memory(stream, block, bytes, "LibTorch's memory", sim::AdoptedValue::kUnknown);
    return block;
  }

  void give(void* block, int64_t bytes, cudaStream_t stream, int device) noexcept {
    const std::lock_guard lock(mutex_);
    // The simulation has forgotten the arena, and no rank allocates from it again.
    if (ended_) return;
    sim::forget_memory(stream, device, block, bytes);
    free_[{stream, bytes}].push_back(block);
  }

  // Called when the streams are destroyed. Tensors may still exist.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    sim::take_back_memory(arena_.data());
  }

  static constexpr int64_t kAlignment = 512;

 private:
  static constexpr int64_t kArenaBytes = int64_t{512} << 20;  // its pages are allocated on access

  const Buffer arena_ = allocate_host(kArenaBytes);  // outlives the tensors in it
  int64_t used_ = 0;
  std::mutex mutex_;
  std::map<std::pair<cudaStream_t, int64_t>, std::vector<void*>> free_;
  bool ended_ = false;
};

namespace {

using Blocks = TorchMemoryOfThread::Blocks;

thread_local std::shared_ptr<Blocks> of_thread;

struct Block {
  std::shared_ptr<Blocks> of;
  int64_t bytes;
  cudaStream_t stream;  // the current stream when LibTorch allocated the block
  int device;           // the device of that stream
};

// Maps the address of a block to the block, because LibTorch passes only the address when it frees.
class BlocksOut {
 public:
  void add(void* data, Block block) {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(data, std::move(block));
  }
  std::optional<Block> take(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return std::nullopt;
    Block block = std::move(found->second);
    blocks_.erase(found);
    return block;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
};

// The allocator that LibTorch calls. Threads without memory of their own use LibTorch's own
// allocator.
class RankAllocator final : public c10::Allocator {
 public:
  // The object is never destroyed, because tensors may outlive everything else.
  static RankAllocator& instance() {
    static auto* const allocator = new RankAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (of_thread == nullptr || bytes == 0) return usual_->allocate(bytes);
    constexpr int64_t kUnit = Blocks::kAlignment;
    const int64_t whole = (static_cast<int64_t>(bytes) + kUnit - 1) / kUnit * kUnit;
    const ComputeStreamOfThread& current = *ComputeStreamOfThread::current();
    void* data = of_thread->take(whole, current.handle());
    out_.add(data, {of_thread, whole, current.handle(), current.device()});
    return {data, data, &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    usual_->copy_data(to, from, bytes);
  }

 private:
  static void give_back(void* data) {
    RankAllocator& self = instance();
    if (const std::optional<Block> block = self.out_.take(data)) {
      block->of->give(data, block->bytes, block->stream, block->device);
    } else {
      self.usual_->raw_deleter()(data);
    }
  }

  c10::Allocator* const usual_ = c10::GetAllocator(c10::kCPU);
  BlocksOut out_;
};

}  // namespace

void take_allocator() {
  static const bool installed = [] {
    c10::SetAllocator(c10::kCPU, &RankAllocator::instance(), /*priority=*/100);
    return true;
  }();
  static_cast<void>(installed);
}

TorchMemoryOfThread::TorchMemoryOfThread() : blocks_(std::make_shared<Blocks>()) {
  take_allocator();
  of_thread = blocks_;
}

TorchMemoryOfThread::~TorchMemoryOfThread() {
  of_thread = nullptr;
  blocks_->end();
}

}  // namespace fsdp::testing

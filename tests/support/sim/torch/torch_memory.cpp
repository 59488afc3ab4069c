#include "support/sim/torch/torch_memory.h"

#include <c10/core/Allocator.h>

#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "runtime/buffer.h"
#include "support/sim/cuda/host_work.h"

namespace fsdp::testing {

// [Note: an arena that is not guarded] It is as pinned memory: kernels may touch it and the order of work on
// it is checked, but the host's pages stay open, because LibTorch's own functions of the host write
// new tensors outside of operators (torch::tensor).
class TorchMemoryOfThread::Blocks {
 public:
  explicit Blocks(cudaStream_t compute) : compute_(compute) {
    sim::lend_memory(arena_.data(), arena_.bytes(), "LibTorch's arena");
  }

  void* take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& free = free_[bytes];
    void* block = nullptr;
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    } else {
      if (used_ + bytes > kArenaBytes) throw std::bad_alloc();
      block = arena_.at(used_);
      used_ += bytes + kAlignment;  // a gap, which is nobody's
    }
    sim::adopt_memory(compute_, block, bytes, "LibTorch's memory");
    return block;
  }

  void give(void* block, int64_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    sim::forget_memory(compute_, block, bytes);
    free_[bytes].push_back(block);
  }

  // The stream goes; tensors may stay.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    sim::take_back_memory(arena_.data());
  }

  static constexpr int64_t kAlignment = 512;

 private:
  static constexpr int64_t kArenaBytes = int64_t{64} << 20;

  const cudaStream_t compute_;
  const Buffer arena_ = allocate_host(kArenaBytes);  // lives as long as a tensor in it
  int64_t used_ = 0;
  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_;
  bool ended_ = false;
};

namespace {

using Blocks = TorchMemoryOfThread::Blocks;

thread_local std::shared_ptr<Blocks> of_thread;

struct Block {
  std::shared_ptr<Blocks> of;
  void* data;
  int64_t bytes;
};

void give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  block->of->give(block->data, block->bytes);
}

// In threads without memory of their own, LibTorch's own allocator.
class RankAllocator final : public c10::Allocator {
 public:
  RankAllocator() : usual_(c10::GetAllocator(c10::kCPU)) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (of_thread == nullptr || bytes == 0) return usual_->allocate(bytes);
    constexpr int64_t kUnit = Blocks::kAlignment;
    const int64_t whole = (static_cast<int64_t>(bytes) + kUnit - 1) / kUnit * kUnit;
    auto block = std::make_unique<Block>(Block{of_thread, of_thread->take(whole), whole});
    void* data = block->data;
    return {data, block.release(), &give_back, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    usual_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const usual_;
};

}  // namespace

TorchMemoryOfThread::TorchMemoryOfThread(cudaStream_t compute)
    : blocks_(std::make_shared<Blocks>(compute)) {
  static RankAllocator* const allocator = [] {
    auto* made = new RankAllocator;  // for good: tensors may outlive all else
    c10::SetAllocator(c10::kCPU, made, /*priority=*/100);
    return made;
  }();
  static_cast<void>(allocator);
  of_thread = blocks_;
}

TorchMemoryOfThread::~TorchMemoryOfThread() {
  of_thread = nullptr;
  blocks_->end();
}

}  // namespace fsdp::testing

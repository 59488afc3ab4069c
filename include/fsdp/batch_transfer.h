// Batches on their way to the device while it computes the step before.
//
//   fsdp::BatchTransfer<Batch> batches(engine, steps, [&](int64_t step) { return …; });
//   for (int64_t step = 0; step < steps; ++step) { const Batch batch = batches.next(); … }
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <fsdp/error.h>
#include <fsdp/tensor_visit.h>
#include <fsdp/trace.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace fsdp {

// The stream on which batches are copied to a device; on the CPU there is none. Of one thread,
// whose current stream is called compute here.
class BatchCopies {
 public:
  // Errors: StateError where LibTorch has done without CUDA, as of an engine.
  explicit BatchCopies(at::Device device);
  // Compute waits for what was not taken, whose memory it gets next.
  ~BatchCopies();
  BatchCopies(const BatchCopies&) = delete;
  BatchCopies& operator=(const BatchCopies&) = delete;

  // Puts a copy on the device in the place of each tensor of the CPU, through pinned memory, which
  // LibTorch keeps until it is read. The copies come behind what compute was given so far: their
  // memory may have been in use there. Nothing waits on the host.
  // Errors: InvalidArgument for a tensor of a third device, or one that requires a gradient.
  void begin(const std::vector<at::Tensor*>& batch);
  // Compute waits for the oldest batch that was begun and not taken.
  void take();

 private:
  const at::Device device_;
  const std::optional<c10::Stream> stream_;  // none: the CPU
  std::deque<c10::Event> copied_;
};

// next() gives make(0), make(1), … make(count - 1), with the tensors that for_each_tensor finds in
// them on the device. On a GPU the call that hands out a batch makes `ahead` more and begins to
// copy them, beside the work that the batch is for; what takes the host long a Prefetcher makes. On
// the CPU each is made in its turn and handed out as it is.
template <class T>
class BatchTransfer {
 public:
  // For an engine's device; its traces show each next() as a span "input".
  // Requires: ahead >= 0; all calls come from one thread, and `make` runs there; the engine
  //   outlives them.
  BatchTransfer(const Engine& engine, int64_t count, std::function<T(int64_t)> make,
                int64_t ahead = 1)
      : BatchTransfer(engine.device(), count, std::move(make), ahead) {
    engine_ = &engine;
  }
  // For any device, and no trace.
  BatchTransfer(at::Device device, int64_t count, std::function<T(int64_t)> make, int64_t ahead = 1)
      : count_(count),
        ahead_(device.is_cpu() ? 0 : ahead),
        make_(std::move(make)),
        copies_(device) {}

  // Effects: the current stream waits for the batch; what it is given next may use it.
  // Errors: what `make` or a copy threw for it, here and in every later call; StateError after the
  //   last one.
  T next() {
    if (taken_ == count_) {
      throw StateError({.what = "next() was called after the last batch",
                        .where = "batch transfer",
                        .hint = "call next() only as often as there are batches"});
    }
    std::optional<InputSpan> span;
    if (engine_ != nullptr) span.emplace(*engine_);
    make_until(taken_ + ahead_);
    if (ready_.empty()) std::rethrow_exception(failure_);
    T batch = std::move(ready_.front());
    ready_.pop_front();
    ++taken_;
    copies_.take();
    return batch;
  }

 private:
  void make_until(int64_t last) {
    while (failure_ == nullptr && made_ <= last && made_ < count_) {
      try {
        T batch = make_(made_);
        std::vector<at::Tensor*> tensors;
        for_each_tensor(batch, [&](at::Tensor& tensor) { tensors.push_back(&tensor); });
        copies_.begin(tensors);
        ready_.push_back(std::move(batch));
        ++made_;
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
  }

  const Engine* engine_ = nullptr;  // null: it has no trace
  const int64_t count_;
  const int64_t ahead_;
  const std::function<T(int64_t)> make_;
  std::deque<T> ready_;
  int64_t made_ = 0;
  int64_t taken_ = 0;
  std::exception_ptr failure_;
  BatchCopies copies_;  // goes before what it copies to
};

}  // namespace fsdp

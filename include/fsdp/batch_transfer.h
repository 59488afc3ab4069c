// Copies the next batches to the device while the device computes the current step.
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

// The stream on which batches are copied to a device. If the device is the CPU, there is no such
// stream. Only one thread may use an object of this class. In the comments below, "compute" is the
// current stream of this thread.
class BatchCopies {
 public:
  // Errors: StateError if `device` is a GPU and LibTorch runs without CUDA.
  explicit BatchCopies(at::Device device);
  // Makes compute wait for the copies of the batches for which take() was not called. When these
  // batches are freed, LibTorch may reuse their memory for later work on compute.
  ~BatchCopies();
  BatchCopies(const BatchCopies&) = delete;
  BatchCopies& operator=(const BatchCopies&) = delete;

  // Replaces each CPU tensor by a copy on the device. The data is copied from pinned memory, and
  // LibTorch keeps this memory until the copy has finished. The copies wait for all work issued on
  // compute so far, because this work may still use the memory into which the batch is copied. The
  // host does not block.
  // Errors: InvalidArgument if a tensor is neither on the CPU nor on this device, or requires a
  //   gradient.
  void begin(const std::vector<at::Tensor*>& batch);
  // Makes compute wait for the copies of the oldest batch for which take() was not called yet.
  void take();

 private:
  const at::Device device_;
  const std::optional<c10::Stream> stream_;  // empty on the CPU
  std::deque<c10::Event> copied_;
};

// A sequence of batches: next() returns make(0), make(1), … make(count - 1). The tensors of each
// returned batch (those that for_each_tensor finds) are on the device. On a GPU each next() also
// makes up to `ahead` further batches and starts their copies, which overlap with the work on the
// returned batch. `make` runs inside next(); for slow work on the host, use a Prefetcher. On the
// CPU each batch is made when it is requested, and returned unchanged.
template <class T>
class BatchTransfer {
 public:
  // Makes batches for an engine's device. The engine's traces show each next() as a span "input".
  // Requires: ahead >= 0. All functions are called from one thread, and `make` runs on this thread.
  //   The engine outlives this object.
  BatchTransfer(const Engine& engine, int64_t count, std::function<T(int64_t)> make,
                int64_t ahead = 1)
      : BatchTransfer(engine.device(), count, std::move(make), ahead) {
    engine_ = &engine;
  }
  // Makes batches for any device, without a trace.
  BatchTransfer(at::Device device, int64_t count, std::function<T(int64_t)> make, int64_t ahead = 1)
      : count_(count),
        ahead_(device.is_cpu() ? 0 : ahead),
        make_(std::move(make)),
        copies_(device) {}

  // Returns the next batch.
  // Effects: the current stream waits for the batch, so work issued to this stream afterwards may
  //   use the batch.
  // Errors: rethrows the exception that `make` or a copy threw for this batch, and rethrows it in
  //   every later call. Throws StateError after the last batch.
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

  const Engine* engine_ = nullptr;  // null: no trace
  const int64_t count_;
  const int64_t ahead_;
  const std::function<T(int64_t)> make_;
  std::deque<T> ready_;
  int64_t made_ = 0;
  int64_t taken_ = 0;
  std::exception_ptr failure_;
  // The last member, so it is destroyed before ready_: copies may still write to batches in ready_.
  BatchCopies copies_;
};

}  // namespace fsdp

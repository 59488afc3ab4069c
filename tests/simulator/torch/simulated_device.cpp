#include "simulator/torch/simulated_device.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>

#include "kernels/cuda/kernels.h"
#include "runtime/cuda/cuda_resources.h"

namespace fsdp::testing {

namespace {

thread_local const ComputeStreamOfThread* bound = nullptr;

std::string name_of(const CodePlace& place) {
  const std::string_view file = place.file;
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), place.line);
}

}  // namespace

class SimulatedStreamOfTest final : public CudaStream {
 public:
  SimulatedStreamOfTest(const SimulatedDevice& device, std::optional<CudaStreamHandle> own)
      : CudaStream(device, own ? own->get() : nullptr), device_(device), own_(std::move(own)) {}

 private:
  std::shared_ptr<EventMark> mark(CodePlace place) override {
    std::shared_ptr<EventMark> now = CudaStream::mark(place);
    // Earlier marks are kept for kRecordEarly. is_mutated also records the place.
    marks_.push_back(now);
    if (device_.is_mutated(Mutation::kRecordEarly, place)) {
      const auto early = static_cast<size_t>(device_.mutated_.marks_early);
      return early < marks_.size() ? marks_[marks_.size() - 1 - early] : nullptr;
    }
    if (marks_.size() > kMarksKept) marks_.pop_front();
    if (!device_.is_mutated(Mutation::kRecordLeftOut, place)) return now;
    // Returning null lets the event keep the mark of its last record here. If it has none, it
    // counts as reached.
    return nullptr;
  }
  void wait_for(const std::shared_ptr<EventMark>& mark, CodePlace place) override {
    if (!device_.is_mutated(Mutation::kWaitLeftOut, place)) CudaStream::wait_for(mark, place);
  }

  const SimulatedDevice& device_;
  const std::optional<CudaStreamHandle> own_;
  static constexpr size_t kMarksKept = 8;
  std::deque<std::shared_ptr<EventMark>> marks_;
};

SimulatedDevice::SimulatedDevice(sim::SimulatedGpu& gpu, int ordinal)
    : CudaDevice(ordinal, kernels::cuda::kernel_table()), gpu_(gpu) {}

std::unique_ptr<Stream> SimulatedDevice::make_stream(const StreamOptions& options) const {
  const CudaScope scope(ordinal());
  CudaStreamHandle own(ordinal(), options.priority);
  gpu_.name_stream(own.get(), options.name + (bound == nullptr ? "" : " of " + bound->owner()));
  return std::make_unique<SimulatedStreamOfTest>(*this, std::move(own));
}

Stream& SimulatedDevice::compute_stream(void* /*native*/) const {
  if (bound == nullptr) throw std::logic_error("the thread has no stream of the simulated device");
  return *bound->stream_;
}

void SimulatedDevice::mutate(MutatedPlace mutated) {
  const std::lock_guard lock(mutex_);
  mutated_ = std::move(mutated);
}

bool SimulatedDevice::is_mutated(Mutation mutation, const CodePlace& place) const {
  const std::lock_guard lock(mutex_);
  const std::string name = name_of(place);
  (mutation == Mutation::kWaitLeftOut ? waits_ : records_).insert(name);
  return mutation == mutated_.mutation && name == mutated_.place;
}

std::set<std::string> SimulatedDevice::waits() const {
  const std::lock_guard lock(mutex_);
  return waits_;
}

std::set<std::string> SimulatedDevice::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

ComputeStreamOfThread::ComputeStreamOfThread(const SimulatedDevice& device, std::string owner,
                                             bool is_default)
    : owner_(std::move(owner)), device_(device.ordinal()) {
  std::optional<CudaStreamHandle> own;
  if (is_default) {
    device.gpu().allow_default_stream(true);
  } else {
    own.emplace(device.ordinal(), StreamPriority::kNormal);
    device.gpu().name_stream(own->get(), "compute of " + owner_);
  }
  stream_ = std::make_unique<SimulatedStreamOfTest>(device, std::move(own));
  if (bound == nullptr) bound = this;
}

ComputeStreamOfThread::~ComputeStreamOfThread() {
  if (bound == this) bound = nullptr;
}

ComputeStreamGuard::ComputeStreamGuard(const ComputeStreamOfThread& now)
    : before_(std::exchange(bound, &now)) {}
ComputeStreamGuard::~ComputeStreamGuard() { bound = before_; }

cudaStream_t ComputeStreamOfThread::handle() const { return stream_->handle(); }

const ComputeStreamOfThread* ComputeStreamOfThread::current() { return bound; }

}  // namespace fsdp::testing

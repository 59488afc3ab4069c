#include "support/fake_cuda/fake_cuda.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace fsdp::testing::fake_cuda {
namespace {

// The state of the fake. It is never destroyed, because LibTorch uses it until the process ends.
struct State {
  std::mutex mutex;
  std::vector<std::string> calls;
  std::set<const void*> pinned;
  c10::StreamId last_stream = 0;
  uintptr_t last_event = 0;
  std::atomic<bool> is_present = true, has_cudnn = false;
  std::atomic<int64_t> held = 0, cached = 0;
};

State& state() {
  static auto* const state = new State;
  return *state;
}

thread_local c10::StreamId current = 0;

// Returns the number of an event. An event of the fake is a pointer whose value is this number.
uintptr_t number_of(void* event) { return reinterpret_cast<uintptr_t>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return kGpu; }
  c10::Device getDevice() const override { return kGpu; }
  void setDevice(c10::Device /*device*/) const override {}
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*device*/) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device /*device*/, bool /*high*/) const override {
    c10::StreamId id = 0;
    {
      const std::lock_guard lock(state().mutex);
      id = ++state().last_stream;
    }
    note(fmt::format("stream {} from the pool", id));
    return stream(id);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    note(fmt::format("stream {} is current", next.id()));
    return stream(std::exchange(current, next.id()));
  }
  void* getStreamNativeHandle(const c10::Stream of) const override {
    return reinterpret_cast<void*>(of.id() * 0x100);
  }
  void synchronizeStream(const c10::Stream& waited) const override {
    note(fmt::format("the host waits for stream {}", waited.id()));
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex /*index*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      const std::lock_guard lock(state().mutex);
      *event = reinterpret_cast<void*>(++state().last_event);
    }
    note(fmt::format("record event {} on stream {}", number_of(*event), on.id()));
  }
  void block(void* event, const c10::Stream& waits) const override {
    note(fmt::format("stream {} waits for event {}", waits.id(), number_of(event)));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* event) const override {
    note(fmt::format("the host waits for event {}", number_of(event)));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*index*/) const noexcept override {
    note(fmt::format("destroy event {}", number_of(event)));
  }
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& on) const override {
    note(fmt::format("record_stream of stream {}", on.id()));
  }
};

void* new_memory(size_t bytes) {
  if (bytes == 0) return nullptr;
  constexpr size_t kAlignment = 512;
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = new_memory(bytes);
    return {data, data, &std::free, kGpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    note("empty the cache");
    state().cached = 0;
  }
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream on) override {
    note(fmt::format("record_stream of stream {}", on.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.reserved_bytes[0].current = state().held + state().cached;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {}
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = new_memory(bytes);
    const std::lock_guard lock(state().mutex);
    state().pinned.insert(data);
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static void give_back(void* data) {
    {
      const std::lock_guard lock(state().mutex);
      state().pinned.erase(data);
    }
    std::free(data);
  }
};

// LibTorch's CUDA hooks. The fake device has its own default generator, as a real GPU does.
struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return hasCUDA(); }
  bool hasCUDA() const override { return state().is_present; }
  bool hasCuDNN() const override { return state().has_cudnn; }
  bool compiledWithCuDNN() const override { return state().has_cudnn; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*index*/) const override {
    static const auto* const generator = new at::Generator(at::detail::createCPUGenerator());
    return *generator;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory memory;
    return &memory;
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Device getDeviceFromPtr(void* /*data*/) const override { return kGpu; }
};

struct Ranges final : torch::profiler::impl::ProfilerStubs {
  void rangePush(const char* name) const override { note(fmt::format("push '{}'", name)); }
  void rangePop() const override { note("pop"); }
  void mark(const char* name) const override { note(fmt::format("mark '{}'", name)); }
  void record(c10::DeviceIndex* /*index*/, torch::profiler::impl::ProfilerVoidEventStub* /*event*/,
              int64_t* /*cpu_ns*/) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub* /*from*/,
                const torch::profiler::impl::ProfilerVoidEventStub* /*to*/) const override {
    return 0;
  }
  void onEachDevice(std::function<void(int)> operation) const override { operation(0); }
  void synchronize() const override {}
};

// The fake is registered before any code can ask LibTorch for CUDA. Its objects are leaked on
// purpose.
const bool registered = [] {
  const c10::impl::DeviceGuardImplRegistrar guard(c10::DeviceType::CUDA, new Guard);
  c10::SetAllocator(c10::DeviceType::CUDA, new DeviceMemory);
  at::CUDAHooksRegistry()->Register("CUDAHooks",
                                    [](at::CUDAHooksArgs) { return std::make_unique<Hooks>(); });
  torch::profiler::impl::registerCUDAMethods(new Ranges);
  return true;
}();

}  // namespace

void reset() {
  const std::lock_guard lock(state().mutex);
  state().calls.clear();
  state().last_stream = 0;
  state().last_event = 0;
  current = 0;
}

std::vector<std::string> take_calls() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().calls, {});
}

void note(std::string call) {
  const std::lock_guard lock(state().mutex);
  state().calls.push_back(std::move(call));
}

c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kGpu, id); }

c10::StreamId current_stream() { return current; }

bool is_pinned(const void* data) {
  const std::lock_guard lock(state().mutex);
  return state().pinned.contains(data);
}

void set_held(int64_t in_use, int64_t cached) {
  state().held = in_use;
  state().cached = cached;
}

Absent::Absent() { state().is_present = false; }
Absent::~Absent() { state().is_present = true; }
WithCudnn::WithCudnn() { state().has_cudnn = true; }
WithCudnn::~WithCudnn() { state().has_cudnn = false; }

}  // namespace fsdp::testing::fake_cuda

#include "libtorch/torch_memory.h"

#include <c10/core/Allocator.h>

#include <memory>
#include <thread>
#include <vector>

#include "base/heap.h"
#include "runtime/out_of_memory.h"
#include "simulator/test_device.h"
#include "support/sanitizers.h"
#include "support/torch_doctest.h"

using namespace fsdp;
using torch_memory::MeterScope;

namespace {

int64_t torch_bytes(const std::shared_ptr<MemoryMeter>& meter) {
  return meter->reading().now.torch;
}

at::Tensor floats(int64_t numel, c10::DeviceType device = c10::kCPU) {
  return torch::empty({numel}, at::TensorOptions().dtype(at::kFloat).device(device));
}

// A function whose backward allocates an additional tensor.
struct Widening : torch::autograd::Function<Widening> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->saved_data["numel"] = x.numel();
    return x + 1;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const at::Tensor wide = floats(100 * context->saved_data["numel"].toInt());
    return {gradients[0] + wide.numel()};
  }
};

}  // namespace

// The simulated GPU has its own allocator, which must be installed first.
TEST_SUITE_BEGIN("LibTorch's memory on the host" *
                 doctest::skip(fsdp::testing::is_simulated_gpu()));

TEST_CASE("tensors are counted to the byte while they live") {
  for (const c10::DeviceType device : {c10::kCPU, c10::kMeta}) {
    CAPTURE(device);
    const auto meter = std::make_shared<MemoryMeter>();
    const MeterScope scope(meter);
    {
      const at::Tensor a = floats(1009, device);
      CHECK(torch_bytes(meter) == 4036);
      at::Tensor b = floats(3, device);
      CHECK(torch_bytes(meter) == 4048);
      const at::Tensor view = b.view({3, 1});
      b = at::Tensor();
      CHECK(torch_bytes(meter) == 4048);  // the view holds the whole tensor
    }
    CHECK(torch_bytes(meter) == 0);
    CHECK(meter->reading().peak.torch == 4048);
    CHECK(floats(0, device).numel() == 0);
    CHECK(meter->reading().peak.torch == 4048);
  }
}

TEST_CASE("an operator takes on meta what it takes on the CPU") {
  std::vector<MeterReading> readings;
  for (const c10::DeviceType device : {c10::kCPU, c10::kMeta}) {
    const auto meter = std::make_shared<MemoryMeter>();
    const MeterScope scope(meter);
    const at::Tensor x = floats(64 * 64, device).view({64, 64}).zero_().set_requires_grad(true);
    const at::Tensor y = torch::softmax(torch::matmul(x, x), 1);
    y.sum().backward();
    readings.push_back(meter->reading());
  }
  CHECK(readings[0].now == readings[1].now);
  CHECK(readings[0].peak == readings[1].peak);
  CHECK(readings[0].now.torch == 3 * 64 * 64 * 4);  // x, the softmax, and the gradient of x
}

TEST_CASE("a tensor on meta has no memory, as ever") {
  const auto meter = std::make_shared<MemoryMeter>();
  const MeterScope scope(meter);
  const int64_t tebi = int64_t{1} << 38;
  const at::Tensor huge = floats(tebi, c10::kMeta);
  CHECK(torch_bytes(meter) == 4 * tebi);
  CHECK(huge.storage().data() == nullptr);
}

TEST_CASE("a meter is a thread's, but a block its meter's") {
  const auto mine = std::make_shared<MemoryMeter>(), theirs = std::make_shared<MemoryMeter>();
  at::Tensor kept;
  const MeterScope scope(mine);
  at::Tensor own = floats(10);
  std::thread([&] {
    CHECK(torch_memory::current_meter() == nullptr);
    const at::Tensor uncounted = floats(1000);
    const MeterScope other(theirs);
    kept = floats(7);
    own = at::Tensor();  // the other thread has counted this tensor
  }).join();
  CHECK(torch_bytes(mine) == 0);
  CHECK(torch_bytes(theirs) == 28);
  const std::weak_ptr<MemoryMeter> watched = theirs;
  kept = at::Tensor();
  CHECK(torch_bytes(theirs) == 0);
}

TEST_CASE("a tensor may outlive its meter's scope and owner") {
  at::Tensor kept;
  std::weak_ptr<MemoryMeter> watched;
  {
    const auto meter = std::make_shared<MemoryMeter>();
    const MeterScope scope(meter);
    kept = floats(5);
    watched = meter;
  }
  CHECK(torch_memory::current_meter() == nullptr);
  REQUIRE(!watched.expired());
  CHECK(torch_bytes(watched.lock()) == 20);
  kept = at::Tensor();
  CHECK(watched.expired());
}

TEST_CASE("scopes lie within each other, and null counts none") {
  const auto outer = std::make_shared<MemoryMeter>(), inner = std::make_shared<MemoryMeter>();
  const MeterScope scope(outer);
  std::vector<at::Tensor> kept;
  {
    const MeterScope within(inner);
    kept.push_back(floats(1));
    const MeterScope nobody(nullptr);
    kept.push_back(floats(100));
  }
  kept.push_back(floats(2));
  CHECK(torch_bytes(inner) == 4);
  CHECK(torch_bytes(outer) == 8);
}

TEST_CASE("a storage that grows is counted as it is") {
  const auto meter = std::make_shared<MemoryMeter>();
  const MeterScope scope(meter);
  at::Tensor x = floats(8);
  x.resize_({64});
  CHECK(torch_bytes(meter) == 256);
}

// Not under sanitizers: malloc serves all there. The decorator replaces the suite's, so it repeats
// the suite's condition.
TEST_CASE("a large tensor lies where the one before it was, whatever small one came between" *
          doctest::skip(kSanitized || fsdp::testing::is_simulated_gpu())) {
  constexpr int64_t kNumel = 1 << 20;
  torch_memory::install();
  keep_freed_blocks();
  at::Tensor large = floats(kNumel);
  const void* const place = large.data_ptr();
  CHECK(reinterpret_cast<uintptr_t>(place) % 64 == 0);
  large = at::Tensor();
  const at::Tensor small = floats(100);
  large = floats(kNumel);
  CHECK(large.data_ptr() == place);
  large.resize_({2 * kNumel});  // it moves, so its old memory is free
  CHECK(floats(kNumel).data_ptr() == place);
  c10::Allocator* const allocator = c10::GetAllocator(c10::kCPU);
  void* const raw = allocator->raw_allocate(4 * kNumel);
  CHECK(raw == place);
  allocator->raw_deallocate(raw);
  return_freed_blocks();
  const at::Tensor returned = floats(kNumel);
  CHECK(returned.data_ptr() != place);
  keep_freed_blocks();
}

TEST_CASE("memory that is given back by its address alone") {
  c10::Allocator* const plain = c10::GetAllocator(c10::kCPU);
  void* const before = plain->raw_allocate(640);  // not counted, perhaps by the allocator below
  const auto meter = std::make_shared<MemoryMeter>();
  const MeterScope scope(meter);
  c10::Allocator* const allocator = c10::GetAllocator(c10::kCPU);
  void* const counted = allocator->raw_allocate(64);
  CHECK(torch_bytes(meter) == 64);
  allocator->raw_deallocate(before);
  CHECK(torch_bytes(meter) == 64);
  allocator->raw_deallocate(counted);
  CHECK(torch_bytes(meter) == 0);
}

TEST_CASE("an operator beyond the limit throws our error") {
  for (const c10::DeviceType device : {c10::kCPU, c10::kMeta}) {
    CAPTURE(device);
    const auto meter = std::make_shared<MemoryMeter>();
    const MeterScope scope(meter);
    const at::Tensor x = floats(1024, device).zero_();
    meter->set_limit(10'000);
    const int64_t before = torch_bytes(meter);
    CHECK_THROWS_WITH_AS(
        x.expand({64, 1024}).contiguous(),
        "out of memory: 256.0 KiB are needed, but the limit of 9.8 KiB leaves 5.8 KiB",
        OutOfMemory);
    CHECK(torch_bytes(meter) == before);
    CHECK((x + 1).numel() == 1024);  // allocations that fit still succeed
  }
}

TEST_CASE("a backward beyond the limit throws our error") {
  const auto meter = std::make_shared<MemoryMeter>();
  const MeterScope scope(meter);
  const at::Tensor x = floats(1024).zero_().set_requires_grad(true);
  for (const bool fits : {true, false, true}) {
    meter->set_limit(fits ? 0 : 100'000);
    const at::Tensor loss = Widening::apply(x * 2).sum();
    if (fits) {
      loss.backward();
    } else {
      CHECK_THROWS_AS(loss.backward(), OutOfMemory);
    }
  }
  CHECK(torch::equal(x.grad(), torch::full({1024}, 2 * 2 * (102'400.0F + 1))));
}

TEST_CASE("wherever a convolution asks for memory, in oneDNN too, the limit may refuse it") {
  const auto step = [](at::ScalarType type) {
    const auto options = at::TensorOptions().dtype(type);
    const at::Tensor x = torch::ones({2, 16, 12, 12}, options).set_requires_grad(true);
    const at::Tensor weight = torch::ones({16, 16, 3, 3}, options).set_requires_grad(true);
    at::Tensor y = torch::conv2d(x, weight, {}, 1, 1);
    y = torch::conv_transpose2d(torch::relu(y), weight, {}, 2);
    torch::matmul(y.flatten(2), y.flatten(2).transpose(1, 2)).sum().backward();
  };
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    CAPTURE(type);
    const auto meter = std::make_shared<MemoryMeter>();
    const MeterScope scope(meter);
    step(type);
    const int64_t peak = meter->reading().peak.torch;
    constexpr int64_t kLimits = 12;
    for (int64_t i = 1; i < kLimits; ++i) {
      meter->set_limit(peak * i / kLimits);
      CAPTURE(meter->limit());
      CHECK_THROWS_AS(step(type), OutOfMemory);
      CHECK(torch_bytes(meter) == 0);
    }
    meter->set_limit(peak);
    step(type);
    CHECK(torch_bytes(meter) == 0);
  }
}

TEST_SUITE_END();

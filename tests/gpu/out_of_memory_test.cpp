// Tests a device without free memory, while LibTorch's allocator still caches some memory.
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <fsdp/optim.h>

#include <atomic>
#include <map>
#include <stdexcept>
#include <string>

#include "engine/support/twin.h"
#include "libtorch/torch_cuda.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A fake of LibTorch's GPU allocator. It is installed while the object exists. It allocates
// nothing, because LibTorch's tensors are on the CPU in this test.
class FakeCache final : public c10::DeviceAllocator {
 public:
  FakeCache() { c10::SetAllocator(at::kCUDA, this); }
  ~FakeCache() override { c10::SetAllocator(at::kCUDA, nullptr); }

  int64_t emptied() const { return emptied_; }

  c10::DataPtr allocate(size_t bytes) override {
    throw std::logic_error(fmt::format("{} bytes of LibTorch's memory on a GPU", bytes));
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { ++emptied_; }
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*index*/) override {
    return {};
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex /*index*/) override {}

 private:
  std::atomic<int64_t> emptied_ = 0;
};

struct TrainedOnGpu {
  std::map<std::string, at::Tensor> parameters;
  int64_t allocations = 0;
};

// Trains while `failures` allocations fail, beginning with the n-th. If n is 0, none fails.
TrainedOnGpu train(int world, const Options& options, int64_t n, int failures = 1) {
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{});
  RunRanksOptions ranks = on_simulated_gpu(session);
  for (int i = 0; n > 0 && i < failures; ++i) {
    session->gpu.fail("cudaMalloc", n + i, cudaErrorMemoryAllocation);
  }
  TrainedOnGpu trained;
  run_ranks(
      world,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
        Engine engine(model, mesh, options);
        AdamW optimizer(engine, {.lr = 1e-2});
        for (int step = 0; step < 2; ++step) {
          graph_loss(*model, step, mesh.rank()).backward();
          optimizer.clip_grad_norm(1.0);
          optimizer.step();
          optimizer.zero_grad();
        }
        auto parameters = full_parameters(engine);
        if (mesh.rank() == 0) trained.parameters = std::move(parameters);
      },
      ranks);
  trained.allocations = session->gpu.calls("cudaMalloc");
  return trained;
}

const Options kLow{
    .mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kBFloat16}};

}  // namespace

TEST_CASE("an allocation that fails once is tried again when LibTorch's cache is empty") {
  for (const int world : {1, 2}) {
    for (const bool is_low : {false, true}) {
      const Options options = is_low ? kLow : Options{};
      const TrainedOnGpu expected = train(world, options, 0);
      CHECK(expected.allocations >= 10);
      for (int64_t n = 1; n <= expected.allocations; ++n) {
        CAPTURE(world);
        CAPTURE(is_low);
        CAPTURE(n);
        const FakeCache cache;
        const TrainedOnGpu trained = train(world, options, n);
        CHECK(cache.emptied() == 1);
        CHECK(trained.allocations == expected.allocations + 1);
        for (const auto& [fqn, value] : trained.parameters) {
          CHECK(bit_equal(value, expected.parameters.at(fqn)));
        }
      }
    }
  }
}

TEST_CASE("an allocation that fails twice names its unit, its bytes and what to do") {
  const int64_t allocations = train(1, {}, 0).allocations;
  for (int64_t n = 1; n <= allocations; ++n) {
    CAPTURE(n);
    const FakeCache cache;
    try {
      train(1, {}, n, /*failures=*/2);
      FAIL_CHECK("nobody heard of it");
    } catch (const DeviceError& error) {
      CAPTURE(error.what());
      CHECK(error.text().what.starts_with("cudaMalloc of "));
      CHECK(error.text().what.ends_with(
          " bytes on cuda:0 failed: out of memory (cudaErrorMemoryAllocation)"));
      CHECK(error.text().hint.starts_with("use more ranks, smaller units"));
      CHECK(!error.text().where.empty());
      if (n == 1) CHECK(error.text().where == "construction of unit '(root)'");
    }
    CHECK(cache.emptied() == 1);
  }
}

TEST_CASE("without LibTorch's CUDA there is no cache, and the first failure counts") {
  CHECK(!torch_cuda::empty_cache());
  CHECK_THROWS_AS(train(1, {}, 1), DeviceError);
}

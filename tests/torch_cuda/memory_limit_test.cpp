// Tests Options::memory_limit when LibTorch's allocator counts its memory. The engine reads that
// count.
#include <c10/core/Allocator.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "libtorch/torch_cuda.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_cuda/fake_cuda_ranks.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int64_t kMiB = 1 << 20;

struct HeldByTorch {
  HeldByTorch(int64_t in_use, int64_t cached) { fake_cuda::set_held(in_use, cached); }
  ~HeldByTorch() { fake_cuda::set_held(0, 0); }
};

at::Tensor loss_on_gpu(Unit<Chain>& model) {
  const Batch batch = batch_of(0, 0);
  const at::Tensor logits = model(batch.tokens.to(kGpu));
  return at::cross_entropy_loss(logits.flatten(0, 1), batch.labels.to(kGpu).flatten());
}

int64_t times_emptied() {
  const std::vector<std::string> calls = fake_cuda::take_calls();
  return std::count(calls.begin(), calls.end(), "empty the cache");
}

}  // namespace

TEST_CASE("what LibTorch holds of a GPU is what its allocator has taken, cache and all") {
  const HeldByTorch held(3 * kMiB, kMiB);
  CHECK(torch_cuda::held_bytes(kGpu) == 4 * kMiB);
  CHECK(torch_cuda::empty_cache());
  CHECK(torch_cuda::held_bytes(kGpu) == 3 * kMiB);
}

TEST_CASE("a limit on a GPU is checked at the boundaries of units, and training goes on after it") {
  run_ranks(
      1,
      [](const Mesh& mesh) {
        auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
        Engine engine(model, mesh, {.memory_limit = kMiB});
        const float expected = loss_on_gpu(model).item<float>();
        {
          const HeldByTorch held(2 * kMiB, kMiB / 2);
          static_cast<void>(times_emptied());
          CHECK_THROWS_WITH_AS(loss_on_gpu(model),
                               doctest::Contains("more than the limit of 1.0 MiB (forward of unit "
                                                 "'(root)'); held: "),
                               DeviceError);
          CHECK(times_emptied() > 0);
        }
        const at::Tensor loss = loss_on_gpu(model);
        {
          const HeldByTorch held(2 * kMiB, 0);
          CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("(backward of unit '(root)')"),
                               DeviceError);
        }
        engine.zero_grad();
        const at::Tensor again = loss_on_gpu(model);
        CHECK(again.item<float>() == expected);
        again.backward();
      },
      on_fake_cuda());
}

TEST_CASE("what LibTorch keeps for later is given back before a limit is passed") {
  run_ranks(
      1,
      [](const Mesh& mesh) {
        const HeldByTorch held(0, 2 * kMiB);
        static_cast<void>(times_emptied());
        auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
        Engine engine(model, mesh, {.memory_limit = kMiB});
        CHECK(times_emptied() == 1);
        loss_on_gpu(model).backward();
        CHECK(times_emptied() == 0);
      },
      on_fake_cuda());
}

TEST_CASE(
    "a limit that nobody could keep is refused: ranks that share a GPU, a foreign allocator") {
  const auto build = [](const Mesh& mesh) {
    auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
    const Engine engine(model, mesh, {.memory_limit = kMiB});
  };
  for (const std::string& error : errors_of_ranks(2, build, on_fake_cuda())) {
    CHECK(error ==
          "memory_limit is set, but ranks share cuda:0 (Options::memory_limit); LibTorch's "
          "allocator counts by device, not by rank; hint: leave memory_limit at 0, or start one "
          "rank per device");
  }
  c10::Allocator* const usual = c10::GetAllocator(at::kCUDA);
  c10::SetAllocator(at::kCUDA, nullptr);
  const std::vector<std::string> errors = errors_of_ranks(1, build, on_fake_cuda());
  c10::SetAllocator(at::kCUDA, usual);
  CHECK(errors[0] ==
        "cannot read how much memory LibTorch holds on cuda:0 (Options::memory_limit); LibTorch's "
        "CUDA allocator is missing or was replaced; hint: leave memory_limit at 0 on this device");
}

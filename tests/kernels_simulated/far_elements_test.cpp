// Tests operands of more than 2^31 elements. Only the first and the last blocks run. They must
// compute 64-bit offsets correctly.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>

#include "fsdp/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/element/digest.h"
#include "kernels/element/updates.h"
#include "kernels/element_cast.h"
#include "runtime/cuda/cuda_device.h"
#include "simulator/cuda/simulated_gpu.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31;
constexpr std::array kFarNumels{kTwo31 - 1, kTwo31 + 1, 4 * kTwo31 + 3};

// A GPU that runs only the first and the last blocks of a launch, and a stream on it.
struct FarGpu {
  explicit FarGpu(uint64_t edge_blocks) { gpu.run_only_edges(edge_blocks); }
  // Returns an array of zeros. Pages that nothing writes use no memory.
  template <class T>
  T* array(int64_t numel) {
    return static_cast<T*>(gpu.sparse_memory(numel * static_cast<int64_t>(sizeof(T))));
  }

  testing::sim::SimulatedGpu gpu;
  const CudaDevice device{0, cuda::kernel_table()};
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "far"});
};

TEST_CASE("the first and the last elements of huge runs are the ones that are touched") {
  for (const int64_t numel : kFarNumels) {
    CAPTURE(numel);
    FarGpu far(2);
    auto* const source = far.array<float>(numel);
    auto* const destination = far.array<uint16_t>(numel + 1);
    source[0] = 1;
    source[numel - 1] = 2;
    const CastRun run{source, destination, numel, DType::kFloat32, DType::kBFloat16};
    cuda::cast_pack(*far.stream, {&run, 1}, 1.0F);
    far.stream->synchronize();
    CHECK(destination[0] == from_float<BFloat16>(1).bits);
    CHECK(destination[numel - 1] == from_float<BFloat16>(2).bits);
    CHECK(destination[numel] == 0);

    const FillRun fill{destination, numel, DType::kBFloat16};
    cuda::fill_nan(*far.stream, {&fill, 1});
    far.stream->synchronize();
    CHECK(destination[0] == 0x7fc0);
    CHECK(destination[numel - 1] == 0x7fc0);
    CHECK(destination[numel] == 0);
    CHECK(far.gpu.take_reports().empty());
  }
}

TEST_CASE("AdamW updates the first and the last elements of huge runs") {
  for (const int64_t numel : kFarNumels) {
    CAPTURE(numel);
    FarGpu far(2);
    UpdateSegment segment{.param = far.array<float>(numel + 1),
                          .moments = {far.array<float>(numel), far.array<float>(numel)},
                          .low_precision_copy = far.array<uint16_t>(numel + 1),
                          .numel = numel,
                          .weight_decay = 0.1};
    auto* const grad = far.array<float>(numel);
    segment.grad = grad;
    const auto* const copy = static_cast<const uint16_t*>(segment.low_precision_copy);
    for (const int64_t i : {int64_t{0}, numel - 1}) {
      segment.param[i] = 2;
      grad[i] = i == 0 ? 0.5F : -0.25F;
    }
    segment.param[numel] = 7;
    cuda::update(*far.stream, {&segment, 1}, AdamW{}, {});
    far.stream->synchronize();
    for (const int64_t i : {int64_t{0}, numel - 1}) {
      float param = 2, exp_avg = 0, exp_avg_sq = 0;
      AdamWElement::Scalars scalars = AdamWUpdate::host_scalars({});
      scalars.decay = AdamWUpdate::decay(segment.lr, segment.weight_decay);
      AdamWUpdate::read_scalars(scalars, segment.lr, nullptr);
      AdamWElement::update(param, i == 0 ? 0.5F : -0.25F, exp_avg, exp_avg_sq, scalars);
      CHECK(segment.param[i] == param);
      CHECK(segment.moments[0][i] == exp_avg);
      CHECK(segment.moments[1][i] == exp_avg_sq);
      CHECK(copy[i] == from_float<BFloat16>(param).bits);
    }
    CHECK(segment.param[numel] == 7);
    CHECK(copy[numel] == 0);
    CHECK(far.gpu.take_reports().empty());
  }
}

TEST_CASE("a reduction sums the first and the last elements of huge runs") {
  for (const int64_t numel : kFarNumels) {
    CAPTURE(numel);
    FarGpu far(2);
    auto* const one = far.array<float>(numel);
    auto* const other = far.array<float>(numel);
    auto* const out = far.array<float>(numel + 1);
    one[0] = 1, other[0] = 2;
    one[numel - 1] = 3, other[numel - 1] = 4;
    const std::array<const void*, 2> sources{one, other};
    const ReduceRun run{sources, out, numel};
    cuda::reduce(*far.stream, {&run, 1}, ReduceOp::kSum);
    far.stream->synchronize();
    CHECK(out[0] == 3);
    CHECK(out[numel - 1] == 7);
    CHECK(out[numel] == 0);
    CHECK(far.gpu.take_reports().empty());
  }
}

// For the largest number of elements the tree takes three launches.
TEST_CASE("a norm counts the first and the last elements of huge runs") {
  for (const int64_t numel : kFarNumels) {
    CAPTURE(numel);
    FarGpu far(2);
    auto* const grad = far.array<float>(numel);
    grad[0] = 3;
    grad[numel - 1] = 4;
    const GradSegment segment{grad, numel, 0};
    auto* const norm = far.array<GradNorm>(1);
    auto* const first = far.array<double>(1);
    const NormOutputs outputs{
        .norm = norm,
        .first_non_finite = first,
        .scratch = far.array<std::byte>(cuda::norm_scratch_bytes({&segment, 1}))};
    cuda::grad_norm(*far.stream, {&segment, 1}, NormType::kTwo, outputs);
    far.stream->synchronize();
    CHECK(norm->power == 25);
    CHECK(*first == 0);
    grad[numel - 1] = std::numeric_limits<float>::infinity();
    cuda::grad_norm(*far.stream, {&segment, 1}, NormType::kTwo, outputs);
    far.stream->synchronize();
    CHECK(norm->non_finite == 1);
    CHECK(*first == static_cast<double>(numel));
    CHECK(far.gpu.take_reports().empty());
  }
}

// Each block reads words across the whole array. Only two blocks run, so the nonzero words are
// words that these blocks read.
TEST_CASE("a digest of more than 2^31 words has the terms of the words that its blocks read") {
  constexpr int64_t kCount = kTwo31 + 5, kLastBlock = kDigestParts - 1;
  FarGpu far(1);
  auto* const words = far.array<uint64_t>(kCount);
  far.gpu.only_read(words);
  words[0] = 1;
  words[kTwo31 - 1] = 2;  // a word of the last block
  words[kCount - 1] = 3;
  const DigestRun run{words, kCount * 8, far.array<uint64_t>(1), far.array<uint64_t>(kDigestParts)};
  cuda::digest(*far.stream, {&run, 1});
  far.stream->synchronize();
  uint64_t expected = 0;
  for (const int64_t block : {int64_t{0}, kLastBlock}) {
    for (int64_t at = block * kBlockThreads; at < kCount; at += kDigestParts * kBlockThreads) {
      for (int64_t i = at; i < at + kBlockThreads && i < kCount; ++i) {
        expected += digest_term(words[i], i);
      }
    }
  }
  CHECK(*run.digest == expected);
  CHECK(far.gpu.take_reports().empty());
}

TEST_CASE("a run that no launch can hold is refused, with its blocks") {
  testing::sim::SimulatedGpu gpu;
  const CudaDevice device(0, cuda::kernel_table());
  const auto stream = device.make_stream({.name = "far"});
  const FillRun run{nullptr, int64_t{1} << 43, DType::kUInt8};
  CHECK_THROWS_WITH_AS(cuda::fill_zero(*stream, {&run, 1}),
                       "fill_zero: a segment has 2147483648 blocks of 4096 elements, expected at "
                       "most 2^31 - 1 blocks; hint: split the segment",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

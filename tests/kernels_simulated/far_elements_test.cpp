// Runs of more than 2^31 elements, of which the first and last blocks run: what they touch is where
// 64 bits say.
#include <doctest/doctest.h>

#include <cstdint>

#include "fsdp/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/element_cast.h"
#include "runtime/cuda/cuda_device.h"
#include "support/sim/cuda/simulated_gpu.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kTwo31 = int64_t{1} << 31;

TEST_CASE("the first and the last elements of huge runs are the ones that are touched") {
  for (const int64_t numel : {kTwo31 - 1, kTwo31 + 1, 4 * kTwo31 + 3}) {
    CAPTURE(numel);
    testing::sim::SimulatedGpu gpu;
    gpu.run_only_edges(2);
    auto* const source = static_cast<float*>(gpu.sparse_memory(numel * 4));
    auto* const destination = static_cast<uint16_t*>(gpu.sparse_memory(numel * 2 + 2));
    const CudaDevice device(0, cuda::kernel_table());
    const auto stream = device.make_stream({.name = "far"});
    source[0] = 1;
    source[numel - 1] = 2;
    const CastRun run{source, destination, numel, DType::kFloat32, DType::kBFloat16};
    cuda::cast_pack(*stream, {&run, 1}, 1.0F);
    stream->synchronize();
    CHECK(destination[0] == from_float<BFloat16>(1).bits);
    CHECK(destination[numel - 1] == from_float<BFloat16>(2).bits);
    CHECK(destination[numel] == 0);

    const FillRun fill{destination, numel, DType::kBFloat16};
    cuda::fill_nan(*stream, {&fill, 1});
    stream->synchronize();
    CHECK(destination[0] == 0x7fc0);
    CHECK(destination[numel - 1] == 0x7fc0);
    CHECK(destination[numel] == 0);
    CHECK(gpu.take_reports().empty());
  }
}

TEST_CASE("a run that no launch can hold is refused, with its blocks") {
  testing::sim::SimulatedGpu gpu;
  const CudaDevice device(0, cuda::kernel_table());
  const auto stream = device.make_stream({.name = "far"});
  const FillRun run{nullptr, int64_t{1} << 43, DType::kUInt8};
  CHECK_THROWS_WITH_AS(
      cuda::fill_zero(*stream, {&run, 1}),
      "fill_zero: a segment of 2147483648 blocks of 4096 elements; hint: cut it: a launch has at "
      "most 2^31 - 1 blocks",
      InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

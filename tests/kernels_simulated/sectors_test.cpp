// Tests that warps access adjacent memory. For many elements they may access at most 5 % more
// sectors than the bytes need.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/grad_norm.h"
#include "kernels/reduce.h"
#include "kernels/trust_ratios.h"
#include "kernels/update.h"
#include "kernels/update_blocks.h"
#include "kernels_simulated/support/arena.h"
#include "kernels_simulated/support/simulated_kernels.h"

namespace fsdp::kernels {
namespace {

constexpr int64_t kSectorsNumel = 32 * 1024;
constexpr double kMostOverLeast = 1.05;

// Five arrays of floats that begin at a boundary.
struct SectorArrays {
  SectorArrays() {
    for (int64_t& each : at) each = arena.floats(kSectorsNumel, 0, /*positive=*/true);
    placed = arena.placed();
  }
  float* array(int i) { return reinterpret_cast<float*>(placed.base() + at[i]); }

  test::Arena arena;
  int64_t at[5] = {};
  test::Arena placed;
};

void check_sectors(const std::function<void(Stream&, SectorArrays&)>& call) {
  SectorArrays arrays;
  const auto stream = test::simulated_device().make_stream({.name = "gpu", .runs_beside = false});
  call(*stream, arrays);
  uint64_t sectors = 0, least = 0;
  for (const auto& launch : test::last_launches()) {
    sectors += launch.report.sectors;
    least += launch.report.least_sectors;
  }
  CAPTURE(sectors);
  CAPTURE(least);
  CHECK(least >= kSectorsNumel / 16);
  CHECK(static_cast<double>(sectors) <= kMostOverLeast * static_cast<double>(least));
}

TEST_CASE("sectors of optimizers") {
  const StepCount step{.step = 1, .inverse_correction1 = 1};
  for (const UpdateRule& rule : {UpdateRule(Lamb{}), UpdateRule(Sgd{})}) {
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      const SumNode node{.elements = {.param = arrays.array(0),
                                      .grad = arrays.array(1),
                                      .moments = {arrays.array(2), arrays.array(3)},
                                      .numel = kSectorsNumel,
                                      .step = &step},
                         .sums = reinterpret_cast<SquareSums*>(arrays.array(4))};
      sum_squares(stream, {&node, 1}, rule, nullptr, arrays.array(4) + 64);
    });
  }
  for (const UpdateRule& rule : {UpdateRule(AdamW{}), UpdateRule(Sgd{}), UpdateRule(RAdam{}),
                                 UpdateRule(Lion{}), UpdateRule(Lamb{}), UpdateRule(Average{})}) {
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      const UpdateSegment segment{.param = arrays.array(0),
                                  .grad = arrays.array(1),
                                  .moments = {arrays.array(2), arrays.array(3)},
                                  .low_precision_copy = arrays.array(4),
                                  .numel = kSectorsNumel,
                                  .step = &step};
      update(stream, {&segment, 1}, rule);
    });
  }
}

TEST_CASE("sectors of updates with quantized moments") {
  const StepCount step{.step = 1, .inverse_correction1 = 1};
  check_sectors([&](Stream& stream, SectorArrays& arrays) {
    const auto moment = [&](int array) {
      return QuantizedMoment{.codes = reinterpret_cast<uint8_t*>(arrays.array(array)),
                             .absmax = arrays.array(array) + kSectorsNumel / 2};
    };
    const BlockSegment segment{.elements = {.param = arrays.array(0),
                                            .grad = arrays.array(1),
                                            .low_precision_copy = arrays.array(4),
                                            .numel = kSectorsNumel,
                                            .step = &step},
                               .exp_avg = moment(2),
                               .exp_avg_sq = moment(3)};
    update_blocks(stream, {&segment, 1}, AdamW{});
  });
}

TEST_CASE("sectors of casts and sums") {
  for (const DType from : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType to : {DType::kFloat32, DType::kFloat16}) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
      check_sectors([&](Stream& stream, SectorArrays& arrays) {
        const CastRun run{arrays.array(0), arrays.array(1), kSectorsNumel, from, to};
        cast_pack(stream, {&run, 1}, 0.5F);
      });
      check_sectors([&](Stream& stream, SectorArrays& arrays) {
        const AccumulateRun run{arrays.array(0), arrays.array(1), kSectorsNumel, from, to};
        accumulate(stream, {&run, 1}, 0.5F);
      });
    }
  }
  check_sectors([&](Stream& stream, SectorArrays& arrays) {
    const CastRun run{arrays.array(0), arrays.array(1), kSectorsNumel};
    cast_pack(stream, {&run, 1});
  });
}

TEST_CASE("sectors of strided sources, transposed and not") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    StridedSource source{.dtype = dtype, .dims = 2, .sizes = {256, 128}, .strides = {1, 256}};
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      source.data = arrays.array(0);
      cast_pack_strided(stream, source, arrays.array(1), dtype, 0.5F);
    });
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      source.data = arrays.array(0);
      accumulate_strided(stream, source, arrays.array(1), DType::kFloat32);
    });
    source.sizes = {128, 128};  // the rows of a wider matrix
    source.strides = {256, 1};
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      source.data = arrays.array(0);
      cast_pack_strided(stream, source, arrays.array(1), DType::kFloat32, 0.5F);
    });
  }
}

TEST_CASE("sectors of fills, digests, norms and reductions") {
  check_sectors([&](Stream& stream, SectorArrays& arrays) {
    const FillRun run{arrays.array(0), kSectorsNumel};
    fill_zero(stream, {&run, 1});
  });
  check_sectors([&](Stream& stream, SectorArrays& arrays) {
    const DigestRun run{arrays.array(0), kSectorsNumel * 4,
                        reinterpret_cast<uint64_t*>(arrays.array(1)),
                        reinterpret_cast<uint64_t*>(arrays.array(2))};
    digest(stream, {&run, 1});
  });
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      const GradSegment segment{arrays.array(0), kSectorsNumel};
      grad_norm(stream, {&segment, 1}, type,
                {.norm = reinterpret_cast<GradNorm*>(arrays.array(1)), .scratch = arrays.array(2)});
    });
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat64, DType::kUInt8}) {
    CAPTURE(name_of(dtype));
    check_sectors([&](Stream& stream, SectorArrays& arrays) {
      const std::vector<const void*> sources{arrays.array(0), arrays.array(1), arrays.array(2),
                                             arrays.array(3)};
      const ReduceRun run{sources, arrays.array(4), kSectorsNumel * 4 / size_of(dtype), dtype};
      reduce(stream, {&run, 1}, ReduceOp::kSum);
    });
  }
}

}  // namespace
}  // namespace fsdp::kernels

// Checks that the GPU's norms of parameters and trust ratios have the bits of the CPU's.
#include "kernels/trust_ratios.h"

#include <doctest/doctest.h>

#include <vector>

#include "kernels_simulated/support/arena.h"
#include "kernels_simulated/support/simulated_kernels.h"

namespace fsdp::kernels {
namespace {

using test::Arena;

// 1,024 blocks of 4,096 elements fill one round of the kernel that joins blocks.
constexpr int64_t kOneRound = int64_t{1024} * 4096;

struct Operands {
  int64_t numel, param, grad, first, second, step, sums, ratio;
};

std::vector<Operands> operands_of(Arena& arena, const std::vector<int64_t>& numels) {
  std::vector<Operands> all;
  for (size_t i = 0; i < numels.size(); ++i) {
    const int64_t numel = numels[i];
    // Every second segment has arrays without a common boundary of vectors.
    const auto at = static_cast<int64_t>(i % 3) * 4;
    const int64_t other = i % 2 == 0 ? at : 4;
    all.push_back({.numel = numel,
                   .param = arena.floats(numel, at),
                   .grad = arena.floats(numel, other, false, 0.1F),
                   .first = arena.floats(numel, at),
                   .second = arena.floats(numel, at, true, 0.01F),
                   .step = arena.value(StepCount{2, 1.25, 0.5}),
                   .sums = arena.value(SquareSums{}),
                   .ratio = arena.value(0.0F)});
  }
  return all;
}

void compute(Stream& stream, std::byte* base, const std::vector<Operands>& all,
             const UpdateRule& rule, int64_t scale) {
  std::vector<SumNode> nodes;
  std::vector<TrustParameter> parameters;
  for (const Operands& each : all) {
    const auto floats = [&](int64_t at) { return reinterpret_cast<float*>(base + at); };
    nodes.push_back({.elements = {.param = floats(each.param),
                                  .grad = floats(each.grad),
                                  .moments = {floats(each.first), floats(each.second)},
                                  .numel = each.numel,
                                  .weight_decay = 0.1,
                                  .step = reinterpret_cast<const StepCount*>(base + each.step)},
                     .sums = reinterpret_cast<SquareSums*>(base + each.sums)});
    parameters.push_back({.weight_decay = 0.1, .ratio = floats(each.ratio)});
  }
  std::vector<double> scratch(static_cast<size_t>(sum_scratch_bytes(nodes)) / sizeof(double));
  sum_squares(stream, nodes, rule, reinterpret_cast<const float*>(base + scale), scratch.data());
  for (size_t i = 0; i < all.size(); ++i) {
    trust_ratios(stream, {&parameters[i], 1}, reinterpret_cast<SquareSums*>(base + all[i].sums),
                 {.coefficient = 0.5, .eps = 1e-8});
  }
  // Several parameters of one table, with joins of the other nodes' sums.
  static const std::vector<NodeJoin> joins{{1, 2}, {0, 1}};
  if (all.size() < 3) return;
  const SquareSums& one = *reinterpret_cast<SquareSums*>(base + all[0].sums);
  std::vector<SquareSums> sums{one, *reinterpret_cast<SquareSums*>(base + all[1].sums),
                               *reinterpret_cast<SquareSums*>(base + all[2].sums)};
  parameters[0].joins = joins.data();
  parameters[0].join_count = 2;
  trust_ratios(stream, {parameters.data(), 1}, sums.data(), {});
}

void check_same(const std::vector<int64_t>& numels, const UpdateRule& rule) {
  Arena arena;
  const std::vector<Operands> all = operands_of(arena, numels);
  const int64_t scale = arena.value(0.7F);
  const auto host = cpu_device().make_stream({.name = "host", .runs_beside = false});
  const auto gpu = test::simulated_device().make_stream({.name = "gpu", .runs_beside = false});
  Arena expected = arena.placed();
  compute(*host, expected.base(), all, rule, scale);
  for (const uint32_t seed : {1U, 1000U}) {
    test::set_schedule(seed);
    Arena found = arena.placed();
    compute(*gpu, found.base(), all, rule, scale);
    const bool same = found.operands() == expected.operands();
    CHECK(same);
  }
}

TEST_CASE("norms and ratios of parameters of every size") {
  for (const UpdateRule& rule : {UpdateRule(Lamb{}), UpdateRule(Sgd{})}) {
    check_same({1, 7, 33, 1009, 4096, 4099, 3 * 4096 + 5, 0, 2}, rule);
  }
}

TEST_CASE("norms of more elements than one round of joins") {
  check_same({kOneRound + 4097}, Sgd{});
}

}  // namespace
}  // namespace fsdp::kernels

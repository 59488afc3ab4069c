#include "kernels/trust_ratios.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/support/step_counts.h"
#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

// Returns the root of the tree over `values`, computed level by level with zeros for missing ones.
double plain_tree(std::vector<double> values) {
  if (values.empty()) return 0;
  while (values.size() > 1) {
    if (values.size() % 2 != 0) values.push_back(0);
    for (size_t i = 0; i < values.size() / 2; ++i) values[i] = values[2 * i] + values[2 * i + 1];
    values.resize(values.size() / 2);
  }
  return values[0];
}

// Returns the sums of the state's next update by Lamb or Sgd.
SquareSums plain_sums(const UpdateState& s, const UpdateRule& rule, float grad_scale) {
  std::vector<double> params, updates;
  for (size_t i = 0; i < s.param.size(); ++i) {
    const volatile float g = s.grad[i] * grad_scale;
    double term = g;
    if (const Lamb* o = std::get_if<Lamb>(&rule)) {
      const volatile float old_m = s.first[i] * static_cast<float>(o->beta1);
      const float m = std::fma(g, static_cast<float>(1 - o->beta1), old_m);
      const volatile float old_v = s.second[i] * static_cast<float>(o->beta2);
      const volatile float scaled_g = static_cast<float>(1 - o->beta2) * g;
      const float v = std::fma(scaled_g, g, old_v);
      const volatile float root = std::sqrt(v);
      const float denominator = std::fma(root, static_cast<float>(1 / s.step.root_correction2),
                                         static_cast<float>(o->eps));
      const volatile float numerator = static_cast<float>(s.step.inverse_correction1) * m;
      const volatile float quotient = numerator / denominator;
      term = std::fma(s.param[i], static_cast<float>(s.weight_decay), quotient);
    }
    params.push_back(static_cast<double>(s.param[i]) * s.param[i]);
    updates.push_back(term * term);
  }
  return {plain_tree(std::move(params)), plain_tree(std::move(updates))};
}

// Returns a part of a segment.
UpdateSegment part_of(UpdateSegment segment, int64_t begin, int64_t numel) {
  segment.param += begin;
  segment.grad += begin;
  for (float*& moment : segment.moments) moment += begin;
  segment.numel = numel;
  return segment;
}

void sum(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
         const float* grad_scale) {
  std::vector<double> scratch(static_cast<size_t>(sum_scratch_bytes(nodes)) / sizeof(double));
  sum_squares(stream, nodes, rule, grad_scale, scratch.data());
  stream.synchronize();
}

TEST_CASE("the sums are those of one tree over the elements, bit for bit, and change nothing") {
  test::on_each_stream([](Stream& stream) {
    for (const UpdateRule& rule : {UpdateRule(Lamb{}), UpdateRule(Sgd{.momentum = 0.9})}) {
      for (const int64_t numel : {1, 2, 3, 15, 255, 257, 1009, 4096, 4097, 70'001}) {
        CAPTURE(numel);
        UpdateState state(numel, 40);
        state.step = test::counted(3, 0.9, 0.999);
        const UpdateState before = state;
        const float scale = 0.7F;
        SquareSums sums;
        const SumNode node{.elements = state.segment(false), .sums = &sums};
        sum(stream, {&node, 1}, rule, &scale);
        const SquareSums plain = plain_sums(before, rule, scale);
        CHECK(sums.param == plain.param);
        CHECK(sums.update == plain.update);
        CHECK(state.differences(before) == 0);
      }
    }
  });
}

// The joins are those of a tree with five nodes: [0, 64), [64, 96), [96, 112), [112, 128) and the
// last node, [128, 256), in which only 72 elements exist.
TEST_CASE("nodes of any size join to the sums of the whole parameter") {
  test::on_each_stream([](Stream& stream) {
    UpdateState state(200, 41);
    state.step = test::counted(3, 0.9, 0.999);
    const std::vector<int64_t> borders{0, 64, 96, 112, 128, 200};
    std::vector<SquareSums> sums(5);
    std::vector<SumNode> nodes;
    for (size_t i = 0; i < sums.size(); ++i) {
      nodes.push_back(
          {.elements = part_of(state.segment(false), borders[i], borders[i + 1] - borders[i]),
           .sums = &sums[i]});
    }
    sum(stream, nodes, Lamb{}, nullptr);
    const std::vector<NodeJoin> joins{{2, 3}, {1, 2}, {0, 1}, {0, 4}};
    float ratio = 0;
    const TrustParameter parameter{
        .joins = joins.data(), .join_count = 4, .root = 0, .ratio = &ratio};
    trust_ratios(stream, {&parameter, 1}, sums.data(), {});
    stream.synchronize();
    const SquareSums plain = plain_sums(state, Lamb{}, 1.0F);
    CHECK(sums[0].param == plain.param);
    CHECK(sums[0].update == plain.update);
    CHECK(ratio == static_cast<float>(std::sqrt(plain.param) / std::sqrt(plain.update)));
  });
}

TEST_CASE("ratios follow the formula, and are 1 if a norm is 0 or not a number") {
  const auto stream = test::make_stream("trust");
  const double nan = std::nan("");
  std::vector<SquareSums> sums{{4, 9}, {0, 9}, {4, 0}, {nan, 9}, {4, nan}};
  std::vector<float> ratios(sums.size());
  std::vector<TrustParameter> parameters;
  for (size_t i = 0; i < sums.size(); ++i) {
    parameters.push_back(
        {.root = static_cast<int32_t>(i), .weight_decay = 0.5, .ratio = &ratios[i]});
  }
  trust_ratios(*stream, parameters, sums.data(), {.coefficient = 0.01, .eps = 1});
  CHECK(ratios == std::vector<float>{static_cast<float>(0.01 * 2 / 5), 1, 1, 1, 1});
}

TEST_CASE("a rule without trust ratios is refused") {
  const auto stream = test::make_stream("trust");
  CHECK_THROWS_WITH_AS(sum_squares(*stream, {}, AdamW{}, nullptr, nullptr),
                       "adamw has no trust ratio; hint: use Lamb or Sgd", InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

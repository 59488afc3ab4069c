#include "kernels/lion.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

// Computes the formula in the header, and rounds to float on each line.
void plain_lion(UpdateState& s, const Lion& o, float grad_scale) {
  for (size_t i = 0; i < s.param.size(); ++i) {
    const volatile float g = s.grad[i] * grad_scale;
    const volatile float old1 = s.first[i] * static_cast<float>(o.beta1);
    const float direction = std::fma(g, static_cast<float>(1 - o.beta1), old1);
    const volatile float old2 = s.first[i] * static_cast<float>(o.beta2);
    s.first[i] = std::fma(g, static_cast<float>(1 - o.beta2), old2);
    const float sign = direction == 0 ? 0.0F : std::copysign(1.0F, direction);
    const volatile float decayed = s.param[i] * static_cast<float>(1 - s.lr * s.weight_decay);
    s.param[i] = decayed + static_cast<float>(-s.lr) * sign;
    s.copy.set(static_cast<int64_t>(i), s.param[i]);
  }
}

TEST_CASE("Lion's steps equal the plain formula bit for bit") {
  test::on_each_stream([](Stream& stream) {
    const Lion rule{.beta1 = 0.95, .beta2 = 0.98};
    test::check_updates(
        stream, rule, [&](UpdateState& s, float scale) { plain_lion(s, rule, scale); },
        [](int step) { return StepCount{.step = step}; });
  });
}

TEST_CASE("a zero direction changes nothing, and a gradient of NaN is not lost") {
  const auto stream = test::make_stream("lion");
  UpdateState state(40, 90);
  state.weight_decay = 0;
  state.grad[3] = state.first[3] = 0;
  state.grad[4] = std::numeric_limits<float>::quiet_NaN();
  const float before = state.param[3];
  const UpdateSegment segment = state.segment(false);
  update(*stream, {&segment, 1}, Lion{});
  CHECK(state.param[3] == before);
  CHECK(std::isnan(state.param[4]));
  CHECK(std::isnan(state.first[4]));
}

}  // namespace
}  // namespace fsdp::kernels

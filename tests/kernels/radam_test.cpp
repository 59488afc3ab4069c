#include "kernels/radam.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>

#include "kernels/support/step_counts.h"
#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

// Computes the formula in the header, and rounds to float on each line.
void plain_radam(UpdateState& s, const RAdam& o, float grad_scale) {
  const bool rectified = s.step.rectification != 0;
  const double correction = s.step.inverse_correction1 * (rectified ? s.step.rectification : 1.0);
  for (size_t i = 0; i < s.param.size(); ++i) {
    const volatile float scaled = s.grad[i] * grad_scale;
    const bool added = !o.decoupled_weight_decay && s.weight_decay != 0;
    const float g =
        added ? std::fma(s.param[i], static_cast<float>(s.weight_decay), scaled) : scaled;
    const volatile float old_m = s.first[i] * static_cast<float>(o.beta1);
    s.first[i] = std::fma(g, static_cast<float>(1 - o.beta1), old_m);
    const volatile float old_v = s.second[i] * static_cast<float>(o.beta2);
    const volatile float scaled_g = static_cast<float>(1 - o.beta2) * g;
    s.second[i] = std::fma(scaled_g, g, old_v);
    const volatile float root = std::sqrt(s.second[i]);
    const volatile float adaptive = root + static_cast<float>(o.eps);
    const volatile float numerator = static_cast<float>(-s.lr * correction) * s.first[i];
    const volatile float change = rectified ? numerator / adaptive : numerator;
    const volatile float decayed =
        s.param[i] *
        (o.decoupled_weight_decay ? static_cast<float>(1 - s.lr * s.weight_decay) : 1.0F);
    s.param[i] = decayed + change;
    s.copy.set(static_cast<int64_t>(i), s.param[i]);
  }
}

TEST_CASE("steps before and after the rectification equal the plain formula bit for bit") {
  test::on_each_stream([](Stream& stream) {
    for (const bool decoupled : {false, true}) {
      const RAdam rule{.eps = 1e-6, .decoupled_weight_decay = decoupled};
      test::check_updates(
          stream, rule, [&](UpdateState& s, float scale) { plain_radam(s, rule, scale); },
          [&](int step) { return test::counted(step, rule.beta1, rule.beta2); });
    }
  });
}

TEST_CASE("a segment without a step counter is refused") {
  const auto stream = test::make_stream("radam");
  UpdateState state(3, 92);
  UpdateSegment segment = state.segment(false);
  segment.step = nullptr;
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, RAdam{}),
                       "radam: segment 0 has no step; hint: set the step of every segment",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

#include "kernels/lamb.h"

#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <limits>

#include "kernels/support/step_counts.h"
#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

// Computes the formula in the header, and rounds to float on each line.
void plain_lamb(UpdateState& s, const Lamb& o, float grad_scale, float ratio) {
  for (size_t i = 0; i < s.param.size(); ++i) {
    const volatile float g = s.grad[i] * grad_scale;
    const volatile float old_m = s.first[i] * static_cast<float>(o.beta1);
    s.first[i] = std::fma(g, static_cast<float>(1 - o.beta1), old_m);
    const volatile float old_v = s.second[i] * static_cast<float>(o.beta2);
    const volatile float scaled_g = static_cast<float>(1 - o.beta2) * g;
    s.second[i] = std::fma(scaled_g, g, old_v);
    const volatile float root = std::sqrt(s.second[i]);
    const float denominator =
        std::fma(root, static_cast<float>(1 / s.step.root_correction2), static_cast<float>(o.eps));
    const volatile float numerator = static_cast<float>(s.step.inverse_correction1) * s.first[i];
    const volatile float quotient = numerator / denominator;
    const float r = s.weight_decay != 0
                        ? std::fma(s.param[i], static_cast<float>(s.weight_decay), quotient)
                        : quotient;
    s.param[i] = std::fma(r, static_cast<float>(-s.lr * ratio), s.param[i]);
    s.copy.set(static_cast<int64_t>(i), s.param[i]);
  }
}

TEST_CASE("LAMB's steps equal the plain formula bit for bit") {
  test::on_each_stream([](Stream& stream) {
    const Lamb rule{.beta1 = 0.8, .beta2 = 0.95};
    for (const float ratio : {1.0F, 0.3F}) {
      test::check_updates(
          stream, rule, [&](UpdateState& s, float scale) { plain_lamb(s, rule, scale, ratio); },
          [&](int step) { return test::counted(step, rule.beta1, rule.beta2); },
          ratio == 1 ? nullptr : &ratio);
    }
  });
}

TEST_CASE("an infinite parameter without decay stays infinite in LAMB") {
  const auto stream = test::make_stream("lamb");
  UpdateState state(40, 90);
  state.step = test::counted(1, 0.9, 0.999);
  state.weight_decay = 0;
  state.param[3] = std::numeric_limits<float>::infinity();
  UpdateSegment segment = state.segment(false);
  update(*stream, {&segment, 1}, Lamb{});
  CHECK(std::isinf(state.param[3]));
  segment.step = nullptr;
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, Lamb{}),
                       "lamb: segment 0 has no step; hint: set the step of every segment",
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

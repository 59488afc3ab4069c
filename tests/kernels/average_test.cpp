#include "kernels/average.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/support/streams.h"
#include "kernels/support/update_state.h"

namespace fsdp::kernels {
namespace {

using test::UpdateState;

TEST_CASE("averages equal the plain formula bit for bit, with and without warm-up") {
  test::on_each_stream([](Stream& stream) {
    for (const bool warmup : {false, true}) {
      const Average rule{.decay = 0.25, .warmup = warmup};  // warm-up ends after two updates
      test::check_updates(
          stream, rule,
          [&](UpdateState& s, float /*grad_scale*/) {
            const auto earlier = static_cast<double>(s.step.step - 1);
            const double decay =
                warmup ? std::min(0.25, (1 + earlier) / (10 + earlier)) : rule.decay;
            for (size_t i = 0; i < s.param.size(); ++i) {
              const volatile float difference = s.grad[i] - s.param[i];
              s.param[i] = std::fma(difference, static_cast<float>(1 - decay), s.param[i]);
              s.copy.set(static_cast<int64_t>(i), s.param[i]);
            }
          },
          [](int step) { return StepCount{.step = step}; });
    }
  });
}

}  // namespace
}  // namespace fsdp::kernels

#include "kernels/count_steps.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support/step_counts.h"
#include "kernels/support/streams.h"

namespace fsdp::kernels {
namespace {

constexpr StepBetas kUsualBetas{.beta1 = 0.9, .beta2 = 0.999};

StepCount next_of(Stream& stream, int64_t step, const StepBetas& betas) {
  StepCount count{.step = step};
  StepCount* const counter = &count;
  count_steps(stream, {&counter, 1}, betas, nullptr);
  stream.synchronize();
  return count;
}

bool same(const StepCount& a, const StepCount& b) {
  return a.step == b.step && a.inverse_correction1 == b.inverse_correction1 &&
         a.root_correction2 == b.root_correction2 && a.rectification == b.rectification;
}

TEST_CASE("a counter has the bits of the header's words at every step") {
  test::on_each_stream([](Stream& stream) {
    for (const StepBetas& betas : {kUsualBetas, StepBetas{0.8, 0.95}, StepBetas{}}) {
      for (const int64_t step : {0, 1, 2, 3, 9, 99, 1022, 12345, 1'000'000, 2'147'483'647}) {
        CAPTURE(step);
        CHECK(
            same(next_of(stream, step, betas), test::counted(step + 1, betas.beta1, betas.beta2)));
      }
    }
    const int64_t large = int64_t{1} << 40;
    CHECK(same(next_of(stream, large, kUsualBetas), test::counted(large + 1, 0.9, 0.999)));
  });
}

TEST_CASE("the corrections are near those of pow, and 1 without betas") {
  const auto stream = test::make_stream("steps");
  for (const int64_t step : {1, 2, 7, 100, 5000, 1'000'000}) {
    CAPTURE(step);
    const StepCount count = next_of(*stream, step - 1, kUsualBetas);
    const auto exponent = static_cast<double>(step);
    // beta^step has an error of step / 2 units in the last place. Relative to 1 - beta^step, this
    // error is largest if beta^step is 1 / e. Then it is 500 · 2^-53 here.
    CHECK(std::fabs(count.inverse_correction1 * (1 - std::pow(0.9, exponent)) - 1) < 1e-13);
    CHECK(std::fabs(count.root_correction2 / std::sqrt(1 - std::pow(0.999, exponent)) - 1) < 1e-12);
  }
  // With the usual betas, the variance is tractable from step 6 on, as in torch.optim.RAdam.
  CHECK(next_of(*stream, 4, kUsualBetas).rectification == 0);
  CHECK(next_of(*stream, 5, kUsualBetas).rectification > 0);
  CHECK(next_of(*stream, 100'000, kUsualBetas).rectification == doctest::Approx(1).epsilon(1e-9));
  const StepCount plain = next_of(*stream, 6, {});
  CHECK(plain.inverse_correction1 == 1);
  CHECK(plain.root_correction2 == 1);
}

TEST_CASE("all counters of a table are counted, unless an element was not finite") {
  test::on_each_stream([](Stream& stream) {
    std::vector<StepCount> counts(700);
    std::vector<StepCount*> table;
    for (StepCount& each : counts) {
      each.step = &each - counts.data();
      table.push_back(&each);
    }
    const std::vector<StepCount> before = counts;
    for (const float flag : {1.0F, -3.0F, std::numeric_limits<float>::quiet_NaN()}) {
      count_steps(stream, table, kUsualBetas, &flag);
      stream.synchronize();
    }
    bool untouched = true;
    for (size_t i = 0; i < counts.size(); ++i) untouched &= same(counts[i], before[i]);
    CHECK(untouched);
    const float clear = -0.0F;
    count_steps(stream, table, kUsualBetas, &clear);
    stream.synchronize();
    bool all = true;
    for (size_t i = 0; i < counts.size(); ++i) {
      all &= same(counts[i], test::counted(static_cast<int64_t>(i) + 1, 0.9, 0.999));
    }
    CHECK(all);
    count_steps(stream, {}, kUsualBetas, nullptr);
  });
}

}  // namespace
}  // namespace fsdp::kernels

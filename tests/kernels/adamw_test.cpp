#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/support/error_texts.h"
#include "kernels/support/step_counts.h"
#include "kernels/support/streams.h"
#include "kernels/update.h"
#include "runtime/cpu/cpu_stream.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

constexpr StepBetas kBetas{.beta1 = 0.9, .beta2 = 0.999};

// The memory of one segment, and a second copy of it for the twin.
struct State {
  State(int64_t numel, uint32_t seed, DType copy_dtype = DType::kBFloat16)
      : param(test::values(numel, seed)),
        grad(test::values(numel, seed + 1, 0.1F)),
        exp_avg(test::values(numel, seed + 2, 0.01F)),
        exp_avg_sq(test::values(numel, seed + 3, 0.001F)),
        copy(copy_dtype, numel) {
    for (float& v : exp_avg_sq) v = std::fabs(v);
  }

  UpdateSegment segment(bool with_copy) {
    return {.param = param.data(),
            .grad = grad.data(),
            .moments = {exp_avg.data(), exp_avg_sq.data()},
            .low_precision_copy = with_copy ? copy.data() : nullptr,
            .low_precision_dtype = copy.dtype(),
            .numel = static_cast<int64_t>(param.size()),
            .lr = lr,
            .weight_decay = weight_decay,
            .step = &step};
  }

  std::vector<float> param, grad, exp_avg, exp_avg_sq;
  Elements copy;
  double lr = 3e-3;
  double weight_decay = 0.1;
  StepCount step = test::counted(1, 0.9, 0.999);
};

// Computes the formula in the header, and rounds to float on each line.
void plain_adamw(State& s, const AdamW& o, float grad_scale, bool bias_correction) {
  const StepCount count =
      bias_correction ? test::counted(s.step.step, o.beta1, o.beta2) : StepCount{0, 1, 1};
  for (size_t i = 0; i < s.param.size(); ++i) {
    const volatile float g = s.grad[i] * grad_scale;
    const volatile float decayed = s.param[i] * static_cast<float>(1 - s.lr * s.weight_decay);
    const volatile float old_m = s.exp_avg[i] * static_cast<float>(o.beta1);
    s.exp_avg[i] = std::fma(g, static_cast<float>(1 - o.beta1), old_m);
    const volatile float old_v = s.exp_avg_sq[i] * static_cast<float>(o.beta2);
    const volatile float scaled_g = static_cast<float>(1 - o.beta2) * g;
    s.exp_avg_sq[i] = std::fma(scaled_g, g, old_v);
    const volatile float root = std::sqrt(s.exp_avg_sq[i]);
    const volatile float corrected = root / static_cast<float>(count.root_correction2);
    const volatile float denominator = corrected + static_cast<float>(o.eps);
    const volatile float numerator =
        static_cast<float>(-s.lr * count.inverse_correction1) * s.exp_avg[i];
    const volatile float change = numerator / denominator;
    s.param[i] = decayed + change;
    s.copy.set(static_cast<int64_t>(i), s.param[i]);
  }
}

int64_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += !test::same(a[i], b[i]);
  return count;
}

int64_t differences(const State& a, const State& b) {
  return differences(a.param, b.param) + differences(a.grad, b.grad) +
         differences(a.exp_avg, b.exp_avg) + differences(a.exp_avg_sq, b.exp_avg_sq);
}

bool same_copy(const Elements& a, const Elements& b) {
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (!test::same(a.get(i), b.get(i))) return false;
  }
  return a.guard_is_intact();
}

TEST_CASE("five steps equal the plain formula bit for bit, for every size and kind of copy") {
  const auto stream = test::make_stream("adamw");
  const AdamW options;
  for (const int64_t numel : test::kSizes) {
    for (const DType copy : {DType::kBFloat16, DType::kFloat16}) {
      for (const bool with_copy : {false, true}) {
        CAPTURE(numel);
        CAPTURE(name_of(copy));
        CAPTURE(with_copy);
        State ours(numel, 20, copy);
        State plain = ours;
        for (int step = 1; step <= (numel > 10000 ? 2 : 5); ++step) {
          ours.step = plain.step = test::counted(step, options.beta1, options.beta2);
          const UpdateSegment segment = ours.segment(with_copy);
          update(*stream, {&segment, 1}, options);
          plain_adamw(plain, options, 1.0F, true);
        }
        CHECK(differences(ours, plain) == 0);
        if (with_copy) CHECK(same_copy(ours.copy, plain.copy));
      }
    }
  }
}

TEST_CASE("segments have their own rate, decay, step and correction, on every stream") {
  test::on_each_stream([](Stream& stream) {
    const AdamW options{.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6};
    State a(1009, 30);
    State b(33, 31);
    State c(5, 32);
    b.weight_decay = 0;
    a.step = test::counted(1, options.beta1, options.beta2);
    b.step = test::counted(400, options.beta1, options.beta2);
    c.lr = 0.5;
    State plain_a = a;
    State plain_b = b;
    State plain_c = c;
    {
      std::vector<UpdateSegment> segments{a.segment(true), b.segment(false), UpdateSegment{},
                                          c.segment(false)};
      segments[3].step = nullptr;
      update(stream, segments, options);
    }
    stream.synchronize();
    plain_adamw(plain_a, options, 1.0F, true);
    plain_adamw(plain_b, options, 1.0F, true);
    plain_adamw(plain_c, options, 1.0F, false);
    CHECK(differences(a, plain_a) == 0);
    CHECK(differences(b, plain_b) == 0);
    CHECK(differences(c, plain_c) == 0);
    CHECK(same_copy(a.copy, plain_a.copy));
  });
}

TEST_CASE("the clip coefficient is read when the stream gets there") {
  test::on_each_stream([](Stream& stream) {
    State ours(1009, 40);
    State plain = ours;
    float coefficient = 1;
    const UpdateScalars scalars{.grad_scale = &coefficient};
    cpu_stream(stream).run([&coefficient] { coefficient = 0.3F; });
    const UpdateSegment segment = ours.segment(false);
    update(stream, {&segment, 1}, AdamW{}, scalars);
    stream.synchronize();
    plain_adamw(plain, {}, 0.3F, true);
    CHECK(differences(ours, plain) == 0);
  });
}

TEST_CASE("found_inf leaves every byte as it was, the step counter too") {
  test::on_each_stream([](Stream& stream) {
    State ours(1009, 50);
    ours.grad[7] = std::numeric_limits<float>::quiet_NaN();
    const State before = ours;
    for (const float flag : {1.0F, 3.0F, std::numeric_limits<float>::quiet_NaN()}) {
      StepCount* const counter = &ours.step;
      count_steps(stream, {&counter, 1}, kBetas, &flag);
      const UpdateSegment segment = ours.segment(true);
      update(stream, {&segment, 1}, AdamW{}, {.found_inf = &flag});
      stream.synchronize();
      CHECK(differences(ours, before) == 0);
      CHECK(ours.copy.bytes() == before.copy.bytes());
      CHECK(ours.step.step == before.step.step);
    }
    const float clear = 0;
    StepCount* const counter = &ours.step;
    count_steps(stream, {&counter, 1}, kBetas, &clear);
    count_steps(stream, {&counter, 1}, kBetas, nullptr);
    const UpdateSegment segment = ours.segment(true);
    update(stream, {&segment, 1}, AdamW{}, {.found_inf = &clear});
    stream.synchronize();
    CHECK(ours.step.step == before.step.step + 2);
    CHECK(differences(ours, before) > 0);
  });
}

TEST_CASE("gradients that are not finite, subnormal or zero follow the plain formula") {
  const auto stream = test::make_stream("adamw");
  Elements special(DType::kFloat32, 1009);
  test::fill_with_values(special, 60, true);
  State ours(1009, 61);
  for (int64_t i = 0; i < 1009; ++i) ours.grad[static_cast<size_t>(i)] = special.get(i);
  State plain = ours;
  const UpdateSegment segment = ours.segment(true);
  update(*stream, {&segment, 1}, AdamW{});
  plain_adamw(plain, {}, 1.0F, true);
  CHECK(differences(ours, plain) == 0);
  CHECK(same_copy(ours.copy, plain.copy));
}

TEST_CASE("the step stays near the exact one") {
  const auto stream = test::make_stream("adamw");
  State ours(1009, 70);
  const State before = ours;
  const UpdateSegment segment = ours.segment(false);
  update(*stream, {&segment, 1}, AdamW{});
  for (size_t i = 0; i < 1009; ++i) {
    const double g = before.grad[i];
    const double m = 0.9 * before.exp_avg[i] + 0.1 * g;
    const double v = 0.999 * before.exp_avg_sq[i] + 0.001 * g * g;
    const double p = before.param[i] * (1 - 3e-3 * 0.1) -
                     3e-3 * (m / 0.1) / (std::sqrt(v) / std::sqrt(1 - 0.999) + 1e-8);
    // The bound allows a few roundings of 2^-24 each. The terms are at most as large as the
    // parameter plus the step.
    REQUIRE(std::fabs(ours.param[i] - p) < 1e-6 * (std::fabs(before.param[i]) + 0.1));
  }
}

TEST_CASE("a copy in another type is refused by name") {
  const auto stream = test::make_stream("adamw");
  const UpdateSegment segment{.low_precision_dtype = DType::kFloat32};
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, AdamW{}),
                       test::refused_copy("adamw", "float32").c_str(), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

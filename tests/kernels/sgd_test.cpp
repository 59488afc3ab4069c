#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/count_steps.h"
#include "kernels/support/elements.h"
#include "kernels/support/error_texts.h"
#include "kernels/support/streams.h"
#include "kernels/update.h"

namespace fsdp::kernels {
namespace {

using test::Elements;

struct State {
  State(int64_t numel, uint32_t seed, DType copy_dtype = DType::kBFloat16)
      : param(test::values(numel, seed)),
        grad(test::values(numel, seed + 1, 0.1F)),
        buffer(static_cast<size_t>(numel), std::numeric_limits<float>::quiet_NaN()),
        copy(copy_dtype, numel) {}

  UpdateSegment segment(bool with_copy) {
    return {.param = param.data(),
            .grad = grad.data(),
            .moments = {buffer.data()},
            .low_precision_copy = with_copy ? copy.data() : nullptr,
            .low_precision_dtype = copy.dtype(),
            .numel = static_cast<int64_t>(param.size()),
            .lr = 0.05,
            .weight_decay = weight_decay,
            .step = &step};
  }

  std::vector<float> param, grad, buffer;
  Elements copy;
  double weight_decay = 0;
  StepCount step;
};

void plain_sgd(State& s, const Sgd& o, float grad_scale) {
  for (size_t i = 0; i < s.param.size(); ++i) {
    float d = s.grad[i] * grad_scale;
    if (s.weight_decay != 0) d = std::fma(s.param[i], static_cast<float>(s.weight_decay), d);
    if (o.momentum != 0) {
      const volatile float kept = s.buffer[i] * static_cast<float>(o.momentum);
      s.buffer[i] = s.step.step == 1 ? d : std::fma(d, static_cast<float>(1 - o.dampening), kept);
      d = o.nesterov ? std::fma(s.buffer[i], static_cast<float>(o.momentum), d) : s.buffer[i];
    }
    s.param[i] = std::fma(d, -0.05F, s.param[i]);
    s.copy.set(static_cast<int64_t>(i), s.param[i]);
  }
}

int64_t differences(const State& a, const State& b) {
  int64_t count = 0;
  for (size_t i = 0; i < a.param.size(); ++i) {
    count += !test::same(a.param[i], b.param[i]);
    count += !test::same(a.buffer[i], b.buffer[i]);
    count += !test::same(a.grad[i], b.grad[i]);
  }
  return count;
}

const std::vector<Sgd> kVariants{
    {},
    {.momentum = 0.9},
    {.momentum = 0.9, .dampening = 0.25},
    {.momentum = 0.9, .nesterov = true},
};

TEST_CASE("four steps of every variant, size and copy equal the plain formula bit for bit") {
  test::on_each_stream([](Stream& stream) {
    for (const Sgd& options : kVariants) {
      for (const double decay : {0.0, 0.01}) {
        for (const int64_t numel : {0, 1, 3, 1009}) {
          for (const DType copy : {DType::kBFloat16, DType::kFloat16}) {
            CAPTURE(options.momentum);
            CAPTURE(options.dampening);
            CAPTURE(options.nesterov);
            CAPTURE(decay);
            CAPTURE(numel);
            State ours(numel, 80, copy);
            ours.weight_decay = decay;
            State plain = ours;
            for (int step = 0; step < 4; ++step) {
              StepCount* const counter = &ours.step;
              count_steps(stream, {&counter, 1}, {}, nullptr);
              const std::vector<UpdateSegment> segments{ours.segment(step % 2 == 1),
                                                        UpdateSegment{}};
              update(stream, segments, options);
              stream.synchronize();
              plain.step.step = step + 1;
              plain_sgd(plain, options, 1.0F);
            }
            CHECK(differences(ours, plain) == 0);
            bool same = ours.copy.guard_is_intact();
            for (int64_t i = 0; i < numel; ++i) same &= ours.copy.get(i) == plain.copy.get(i);
            CHECK(same);
          }
        }
      }
    }
  });
}

TEST_CASE("an infinite parameter without decay stays infinite") {
  const auto stream = test::make_stream("sgd");
  State ours(40, 90);
  ours.param[3] = std::numeric_limits<float>::infinity();
  const UpdateSegment segment = ours.segment(false);
  update(*stream, {&segment, 1}, Sgd{});
  CHECK(std::isinf(ours.param[3]));
}

TEST_CASE("the scale is applied and found_inf leaves every byte as it was") {
  const auto stream = test::make_stream("sgd");
  State ours(1009, 91);
  ours.step.step = 1;
  State plain = ours;
  const float scale = 0.7F;
  float found_inf = 1;
  const Sgd options{.momentum = 0.9};
  const UpdateScalars scalars{.grad_scale = &scale, .found_inf = &found_inf};
  const UpdateSegment segment = ours.segment(true);
  update(*stream, {&segment, 1}, options, scalars);
  CHECK(differences(ours, plain) == 0);
  CHECK(ours.copy.bytes() == plain.copy.bytes());
  found_inf = 0;
  update(*stream, {&segment, 1}, options, scalars);
  plain_sgd(plain, options, scale);
  CHECK(differences(ours, plain) == 0);
}

// A learning rate of half the size has the same effect, because the ratio is a power of two.
TEST_CASE("a trust ratio scales the gradient with its decay, before the momentum") {
  const auto stream = test::make_stream("sgd");
  for (const Sgd& options : kVariants) {
    State ours(1009, 93);
    ours.weight_decay = 0.01;
    State plain = ours;
    const float ratio = 0.5F;
    for (int step = 1; step <= 3; ++step) {
      ours.step.step = plain.step.step = step;
      UpdateSegment segment = ours.segment(true);
      segment.trust_ratio = &ratio;
      segment.lr = 0.1;
      update(*stream, {&segment, 1}, options);
      plain_sgd(plain, options, 1.0F);
    }
    for (float& each : plain.buffer) each *= options.momentum == 0 ? 1.0F : 0.5F;
    CHECK(differences(ours, plain) == 0);
  }
}

TEST_CASE("arguments that do not fit together are refused") {
  const auto stream = test::make_stream("sgd");
  State state(3, 92);
  UpdateSegment segment = state.segment(false);
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, Sgd{.nesterov = true}),
                       "sgd: nesterov is set with momentum 0 and dampening 0; hint: for nesterov "
                       "set momentum above 0 and dampening to 0",
                       InvalidArgument);
  segment.step = nullptr;
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, Sgd{.momentum = 0.9}),
                       "sgd: segment 0 has no step; hint: with momentum, set the step and the "
                       "momentum buffer of every segment",
                       InvalidArgument);
  segment = state.segment(false);
  segment.moments[0] = nullptr;
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, Sgd{.momentum = 0.9}),
                       doctest::Contains("sgd: segment 0 has no momentum buffer; hint: "),
                       InvalidArgument);
  segment = state.segment(false);
  segment.low_precision_dtype = DType::kInt32;
  CHECK_THROWS_WITH_AS(update(*stream, {&segment, 1}, Sgd{}),
                       test::refused_copy("sgd", "int32").c_str(), InvalidArgument);
}

}  // namespace
}  // namespace fsdp::kernels

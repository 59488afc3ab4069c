// The memory of one segment, for tests of update rules.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/support/elements.h"
#include "kernels/update.h"

namespace fsdp::test {

struct UpdateState {
  UpdateState(int64_t numel, uint32_t seed, DType copy_dtype = DType::kBFloat16)
      : param(values(numel, seed)),
        grad(values(numel, seed + 1, 0.1F)),
        first(values(numel, seed + 2, 0.01F)),
        second(values(numel, seed + 3, 0.001F)),
        copy(copy_dtype, numel) {
    for (float& each : second) each = std::fabs(each);
  }

  kernels::UpdateSegment segment(bool with_copy) {
    return {.param = param.data(),
            .grad = grad.data(),
            .moments = {first.data(), second.data()},
            .low_precision_copy = with_copy ? copy.data() : nullptr,
            .low_precision_dtype = copy.dtype(),
            .numel = static_cast<int64_t>(param.size()),
            .lr = lr,
            .weight_decay = weight_decay,
            .step = &step};
  }

  // Returns the number of values with different bits, in all arrays and in the copy.
  int64_t differences(const UpdateState& other) const {
    int64_t count = copy.guard_is_intact() ? 0 : 1;
    for (size_t i = 0; i < param.size(); ++i) {
      count += same(param[i], other.param[i]) ? 0 : 1;
      count += same(grad[i], other.grad[i]) ? 0 : 1;
      count += same(first[i], other.first[i]) ? 0 : 1;
      count += same(second[i], other.second[i]) ? 0 : 1;
      const auto at = static_cast<int64_t>(i);
      count += same(copy.get(at), other.copy.get(at)) ? 0 : 1;
    }
    return count;
  }

  std::vector<float> param, grad, first, second;
  Elements copy;
  double lr = 3e-3;
  double weight_decay = 0.1;
  kernels::StepCount step;
};

// Updates a segment of each size by `rule`, with and without decay, and compares all bits with
// plain(state, grad_scale). `counts` sets the step counter for step 1, 2 and so on.
template <class Rule, class Plain, class Counts>
void check_updates(Stream& stream, const Rule& rule, const Plain& plain, const Counts& counts,
                   const float* trust_ratio = nullptr) {
  for (const int64_t numel : kSizes) {
    for (const double decay : {0.0, 0.1}) {
      for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
        if (numel > 10000 && type == DType::kFloat16) continue;
        UpdateState ours(numel, 20, type);
        ours.weight_decay = decay;
        UpdateState other = ours;
        for (int step = 1; step <= (numel > 10000 ? 2 : 8); ++step) {
          ours.step = other.step = counts(step);
          const float scale = step % 2 == 0 ? 0.7F : 1.0F;
          // An empty segment, of which this rank owns no element, needs no pointers.
          std::vector<kernels::UpdateSegment> segments{ours.segment(/*with_copy=*/true),
                                                       kernels::UpdateSegment{}};
          segments[0].trust_ratio = trust_ratio;
          kernels::update(stream, segments, rule, {.grad_scale = &scale});
          stream.synchronize();
          plain(other, scale);
        }
        CAPTURE(numel);
        CAPTURE(decay);
        CHECK(ours.differences(other) == 0);
        // A step that is skipped changes nothing.
        const float found_inf = 1;
        const kernels::UpdateSegment segment = ours.segment(/*with_copy=*/true);
        kernels::update(stream, {&segment, 1}, rule, {.found_inf = &found_inf});
        stream.synchronize();
        CHECK(ours.differences(other) == 0);
      }
    }
  }
}

}  // namespace fsdp::test

#include "kernels/adamw.h"

#include <fmt/format.h>

#include "fsdp/error.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

struct AdamWState final : Optimizer::State {
  AdamWState(Engine& owner, AdamWOptions from)
      : State(owner, "AdamW",
              {from.lr, from.weight_decay, from.parameters, from.groups, from.skip_nonfinite,
               /*moments=*/2}),
        options(std::move(from)) {}

  double* momentum() override { return &options.beta1; }

  std::vector<std::string_view> moment_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  std::map<std::string, double> option_values() const override {
    return {{"beta1", options.beta1},
            {"beta2", options.beta2},
            {"eps", options.eps},
            {"weight_decay", weight_decay},
            {"bias_correction", options.bias_correction ? 1 : 0}};
  }
  kernels::StepBetas betas() const override {
    return {.beta1 = options.beta1, .beta2 = options.beta2};
  }

  void update(Stream& stream, const std::vector<OptimizerUpdate>& updates, const float* scale,
              const float* found_inf) override {
    std::vector<kernels::AdamWSegment> table;
    for (const OptimizerUpdate& each : updates) {
      const int64_t offset = each.run.offset, moment = each.run.moment_offset;
      const int64_t copy_bytes = offset * size_of(each.segment.copy_dtype);
      auto* copy = static_cast<std::byte*>(each.segment.resident_copy);
      table.push_back(
          {.param = each.segment.param + offset,
           .grad = each.segment.grad + offset,
           .exp_avg = static_cast<float*>(each.state.moments[0].data()) + moment,
           .exp_avg_sq = static_cast<float*>(each.state.moments[1].data()) + moment,
           .low_precision_copy = copy != nullptr ? copy + copy_bytes : nullptr,
           .low_precision_dtype = copy != nullptr ? each.segment.copy_dtype : DType::kBFloat16,
           .numel = each.run.numel,
           .lr = each.lr,
           .weight_decay = each.weight_decay,
           .step = options.bias_correction ? each.run.step : nullptr});
    }
    kernels::adamw(stream, table,
                   {.beta1 = options.beta1,
                    .beta2 = options.beta2,
                    .eps = options.eps,
                    .grad_scale = scale,
                    .found_inf = found_inf});
  }

  AdamWOptions options;
};

AdamWOptions checked(AdamWOptions options) {
  const auto require = [](bool holds, std::string_view name, double value) {
    if (holds) return;
    throw InvalidArgument({.what = fmt::format("AdamW: {} is {}", name, value),
                           .hint = "lr, eps and weight_decay are at least 0, betas in [0, 1)"});
  };
  require(options.lr >= 0, "lr", options.lr);
  require(options.eps >= 0, "eps", options.eps);
  require(options.weight_decay >= 0, "weight_decay", options.weight_decay);
  require(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1);
  require(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2);
  return options;
}

}  // namespace

AdamW::AdamW(Engine& engine, AdamWOptions options)
    : Optimizer(std::make_unique<AdamWState>(engine, checked(std::move(options)))) {}

}  // namespace fsdp

#include "kernels/sgd.h"

#include "fsdp/error.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

struct SgdState final : Optimizer::State {
  SgdState(Engine& owner, SgdOptions from)
      : State(owner, "SGD",
              {from.lr, from.weight_decay, from.parameters, from.groups, from.skip_nonfinite,
               /*moments=*/from.momentum != 0 ? 1 : 0}),
        options(std::move(from)) {}

  double* momentum() override { return options.momentum != 0 ? &options.momentum : nullptr; }
  std::vector<std::string_view> moment_names() const override {
    if (options.momentum == 0) return {};
    return {"momentum_buffer"};
  }
  std::map<std::string, double> option_values() const override {
    return {{"momentum", options.momentum},
            {"dampening", options.dampening},
            {"weight_decay", weight_decay},
            {"nesterov", options.nesterov ? 1 : 0}};
  }

  void update(Stream& stream, const std::vector<OptimizerUpdate>& updates, const float* scale,
              const float* found_inf) override {
    std::vector<kernels::SgdSegment> table;
    for (const OptimizerUpdate& each : updates) {
      const int64_t offset = each.run.offset;
      const bool has_momentum = !each.state.moments.empty();
      auto* copy = static_cast<std::byte*>(each.segment.resident_copy);
      table.push_back(
          {.param = each.segment.param + offset,
           .grad = each.segment.grad + offset,
           .momentum_buffer = has_momentum ? static_cast<float*>(each.state.moments[0].data()) +
                                                 each.run.moment_offset
                                           : nullptr,
           .low_precision_copy =
               copy != nullptr ? copy + offset * size_of(each.segment.copy_dtype) : nullptr,
           .low_precision_dtype = copy != nullptr ? each.segment.copy_dtype : DType::kBFloat16,
           .numel = each.run.numel,
           .lr = each.lr,
           .weight_decay = each.weight_decay,
           .step = each.run.step});
    }
    kernels::sgd(stream, table,
                 {.momentum = options.momentum,
                  .dampening = options.dampening,
                  .nesterov = options.nesterov,
                  .grad_scale = scale,
                  .found_inf = found_inf});
  }

  SgdOptions options;
};

SgdOptions checked(SgdOptions options) {
  const bool nesterov_fits = !options.nesterov || (options.momentum > 0 && options.dampening == 0);
  if (options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0 && nesterov_fits) {
    return options;
  }
  throw InvalidArgument(
      {.what = "SGD: options do not fit together",
       .hint = "lr, momentum and weight_decay are at least 0; nesterov needs momentum "
               "and no dampening"});
}

}  // namespace

SGD::SGD(Engine& engine, SgdOptions options)
    : Optimizer(std::make_unique<SgdState>(engine, checked(std::move(options)))) {}

}  // namespace fsdp

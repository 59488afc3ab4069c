#include "optim/adam_options.h"

namespace fsdp {
namespace {

// AdamW's options and update rule. The base class keeps moments, counters and groups.
struct AdamWState final : AdamState<AdamWOptions> {
  AdamWState(Engine& owner, AdamWOptions from) : AdamState(owner, "AdamW", std::move(from)) {}

  std::map<std::string, double> option_values() const override {
    std::map<std::string, double> values = AdamState::option_values();
    values["bias_correction"] = options.bias_correction ? 1 : 0;
    return values;
  }
  kernels::UpdateRule rule() const override {
    return kernels::AdamW{.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
  }
  // Without bias corrections, no value of the update depends on the step number.
  bool reads_steps() const override { return options.bias_correction; }
};

}  // namespace

AdamW::AdamW(Engine& engine, AdamWOptions options)
    : Optimizer(std::make_unique<AdamWState>(engine, checked_adam("AdamW", std::move(options)))) {}

}  // namespace fsdp

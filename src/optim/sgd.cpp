#include "fsdp/error.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// SGD's options and update rule. If momentum is 0, there is no moment.
struct SgdState final : Optimizer::State {
  SgdState(Engine& owner, SgdOptions from)
      : State(owner, "SGD", settings_of(from, /*moments=*/from.momentum != 0 ? 1 : 0)),
        options(std::move(from)) {}

  // Returns null if momentum is 0. A scheduler cannot turn momentum on later, because no momentum
  // buffer was allocated.
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

  kernels::UpdateRule rule() const override {
    return kernels::Sgd{
        .momentum = options.momentum, .dampening = options.dampening, .nesterov = options.nesterov};
  }

  SgdOptions options;
};

SgdOptions checked(SgdOptions options) {
  const bool nesterov_fits = !options.nesterov || (options.momentum > 0 && options.dampening == 0);
  if (options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0 && nesterov_fits) {
    return options;
  }
  throw InvalidArgument(
      {.what = "SGD: an option is negative, or nesterov is set without momentum or with dampening",
       .hint = "set lr, momentum and weight_decay to 0 or more; for nesterov set momentum above 0 "
               "and dampening to 0"});
}

}  // namespace

SGD::SGD(Engine& engine, SgdOptions options)
    : Optimizer(std::make_unique<SgdState>(engine, checked(std::move(options)))) {}

}  // namespace fsdp

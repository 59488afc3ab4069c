#include <fmt/format.h>

#include "fsdp/error.h"
#include "optim/optimizer_state.h"
#include "optim/scheduler_checks.h"

namespace fsdp {
namespace {

// The options and the update rule of SGD and of LARS, which is SGD with trust ratios. If momentum
// is 0, there is no moment.
template <class Options>
struct SgdState : Optimizer::State {
  SgdState(Engine& owner, std::string name, bool adapts, Options from)
      : State(owner, std::move(name), settings_of(from, from.momentum != 0 ? 1 : 0, adapts)),
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

  Options options;
};

struct LarsState final : SgdState<LarsOptions> {
  LarsState(Engine& owner, LarsOptions from)
      : SgdState(owner, "Lars", /*adapts=*/true, std::move(from)) {}

  std::map<std::string, double> option_values() const override {
    std::map<std::string, double> values = SgdState::option_values();
    values["trust_coefficient"] = options.trust_coefficient;
    values["eps"] = options.eps;
    values["always_adapt"] = options.always_adapt ? 1 : 0;
    return values;
  }
  TrustRule trust_rule() const override {
    return {.formula = {.coefficient = options.trust_coefficient, .eps = options.eps},
            .adds_decay = true,
            .always_adapt = options.always_adapt};
  }
};

template <class Options>
Options checked(std::string_view optimizer, Options options) {
  const bool nesterov_fits = !options.nesterov || (options.momentum > 0 && options.dampening == 0);
  if (options.lr >= 0 && options.momentum >= 0 && options.weight_decay >= 0 && nesterov_fits) {
    return options;
  }
  throw InvalidArgument(
      {.what = fmt::format("{}: an option is negative, or nesterov is set without momentum or with "
                           "dampening",
                           optimizer),
       .hint = "set lr, momentum and weight_decay to 0 or more; for nesterov set momentum above 0 "
               "and dampening to 0"});
}

LarsOptions checked_lars(LarsOptions options) {
  constexpr std::string_view kAllowed = "set trust_coefficient and eps to 0 or more";
  require_option(options.trust_coefficient >= 0, "Lars", "trust_coefficient",
                 options.trust_coefficient, kAllowed);
  require_option(options.eps >= 0, "Lars", "eps", options.eps, kAllowed);
  return checked("Lars", std::move(options));
}

}  // namespace

SGD::SGD(Engine& engine, SgdOptions options)
    : Optimizer(std::make_unique<SgdState<SgdOptions>>(engine, "SGD", /*adapts=*/false,
                                                       checked("SGD", std::move(options)))) {}

Lars::Lars(Engine& engine, LarsOptions options)
    : Optimizer(std::make_unique<LarsState>(engine, checked_lars(std::move(options)))) {}

}  // namespace fsdp

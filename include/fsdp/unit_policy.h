// Policies that choose units of a model whose classes do not use fsdp::Unit: models and
// factories of other libraries, classes that cannot be edited.
//
//   fsdp::Engine engine(model, mesh, {.units = fsdp::by_type<BlockImpl>()});
//   at::Tensor loss = engine.forward([&](at::Tensor x) { return loss_of(model->forward(x)); }, x);
//   loss.backward();
//
// Each chosen module is a unit, and so is the root. A parameter belongs to the innermost unit
// around it; a parameter tied across units belongs to the innermost unit around all of them.
// Engine::describe lists units and modules. Unit<> and policies may be mixed. docs/migration.md
// compares them and lists the rules for such models.
#pragma once

#include <fsdp/callback.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

class UnitPolicy {
 public:
  // Returns how many neighbouring modules form the unit of `module`. 0: none, it is no unit; 1 (or
  // true): a unit by itself; k: a unit together with neighbours that return k too, k of them in
  // all.
  using Chooses = Callback<int(std::string_view fqn, const torch::nn::Module& module)>;

  // Chooses nothing: only fsdp::Unit makes units.
  UnitPolicy() = default;
  // `described` names the policy in errors. `chooses` is called for each module except the root,
  // outer ones first, and must return the same on all ranks.
  UnitPolicy(std::string described, Chooses chooses)
      : described_(std::move(described)), chooses_(std::move(chooses)) {}

  bool is_set() const { return static_cast<bool>(chooses_); }
  int layers_of_unit(std::string_view fqn, const torch::nn::Module& module) const {
    return chooses_ ? chooses_(fqn, module) : 0;
  }
  const std::string& described() const { return described_; }
  bool operator==(const UnitPolicy&) const = default;

  // Returns a policy that chooses what either chooses. The engine refuses a module that both choose
  // for units of different numbers of layers.
  friend UnitPolicy operator|(const UnitPolicy& a, const UnitPolicy& b);

 private:
  std::string described_;
  Chooses chooses_;
};

namespace policy_detail {

template <class M>
struct ImplOf {
  using Type = M;
};
template <class M>
requires requires { typename M::ContainedType; }
struct ImplOf<M> {
  using Type = typename M::ContainedType;
};

}  // namespace policy_detail

// Returns a policy that chooses modules of these types or of types derived from them. A type is
// BlockImpl or its holder Block. A class that registers its parameters in several inner layers
// (nn::TransformerEncoderLayer) is one unit, unless these are chosen too.
template <class... M>
UnitPolicy by_type() {
  static_assert(sizeof...(M) > 0, "by_type<BlockImpl>(): name the types that are to be units");
  return {"by_type", [](std::string_view, const auto& module) {
            return (... || (dynamic_cast<const typename policy_detail::ImplOf<M>::Type*>(&module) !=
                            nullptr));
          }};
}

// Returns a policy that chooses the modules registered directly in `fqn` ("encoder.layers"),
// usually a Sequential or ModuleList; "" is the root. With `layers` = k each run of k neighbours is
// one unit, named "encoder.layers.0-3", and the last unit has the remaining ones: fewer and larger
// collectives. Such a unit's forward begins at the first of its layers and ends after the last.
// Requires: with k > 1 none of the modules is a fsdp::Unit.
// Errors: InvalidArgument if `layers` is less than 1.
UnitPolicy each_child_of(std::string fqn, int layers = 1);

// Returns a policy that chooses modules by FQN.
UnitPolicy by_name(std::function<bool(std::string_view fqn)> chooses);

}  // namespace fsdp

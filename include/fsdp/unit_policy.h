// Policies that choose the units of a model whose classes do not use fsdp::Unit. Examples are
// models and factories of other libraries, and classes that cannot be edited.
//
//   fsdp::Engine engine(model, mesh, {.units = fsdp::by_type<BlockImpl>()});
//   at::Tensor loss = engine.forward([&](at::Tensor x) { return loss_of(model->forward(x)); }, x);
//   loss.backward();
//
// Each chosen module is a unit, and the root is a unit too. A parameter belongs to the innermost
// unit around it. A parameter tied across units belongs to the innermost unit around all of its
// registrations. Engine::describe lists units and modules. A model may use both Unit<> and a
// policy. docs/migration.md compares Unit<> with policies, and lists the rules for models that use
// both.
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
  // Returns how many neighbouring modules form the unit that contains `module`. 0: the module is
  // not a unit. 1 (or true): the module alone is a unit. k: the module and neighbours that also
  // return k form a unit of k modules.
  using Chooses = Callback<int(std::string_view fqn, const torch::nn::Module& module)>;

  // Chooses no module, so only fsdp::Unit makes units.
  UnitPolicy() = default;
  // `described` is the policy's name in errors. `chooses` is called for each module except the
  // root, outer modules first. `chooses` must return the same values on all ranks.
  UnitPolicy(std::string described, Chooses chooses)
      : described_(std::move(described)), chooses_(std::move(chooses)) {}

  bool is_set() const { return static_cast<bool>(chooses_); }
  int layers_of_unit(std::string_view fqn, const torch::nn::Module& module) const {
    return chooses_ ? chooses_(fqn, module) : 0;
  }
  const std::string& described() const { return described_; }
  bool operator==(const UnitPolicy&) const = default;

  // Returns a policy that chooses each module that `a` or `b` chooses. If both choose a module, but
  // with different numbers of modules per unit, the engine throws.
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

// Returns a policy that chooses modules of these types or of types derived from them. A type can be
// given as BlockImpl or as its holder Block. A module whose parameters are registered in several
// inner layers (nn::TransformerEncoderLayer) is one unit, unless its inner layers are chosen, too.
template <class... M>
UnitPolicy by_type() {
  static_assert(sizeof...(M) > 0, "by_type<BlockImpl>(): name the types that are to be units");
  return {"by_type", [](std::string_view, const auto& module) {
            return (... || (dynamic_cast<const typename policy_detail::ImplOf<M>::Type*>(&module) !=
                            nullptr));
          }};
}

// Returns a policy that chooses the modules registered directly in `fqn` ("encoder.layers"),
// usually a Sequential or ModuleList. "" is the root. If `layers` is k, each k consecutive modules
// form one unit, named "encoder.layers.0-3", and the last unit has the remaining modules. Such
// units need fewer but larger collectives. The forward of such a unit begins with its first layer
// and ends after its last layer.
// Requires: if k > 1, none of the modules is an fsdp::Unit.
// Errors: InvalidArgument if `layers` is less than 1.
UnitPolicy each_child_of(std::string fqn, int layers = 1);

// Returns a policy that chooses the modules for whose FQN `chooses` returns true.
UnitPolicy by_name(std::function<bool(std::string_view fqn)> chooses);

}  // namespace fsdp

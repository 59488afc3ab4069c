// Which modules of a model become units, where its classes do not say so by fsdp::Unit: models of
// other people, factories that return ready objects, classes that may not be touched.
//
//   fsdp::Engine engine(model, mesh, {.units = fsdp::by_type<BlockImpl>()});
//   at::Tensor loss = engine.forward([&](at::Tensor x) { return loss_of(model->forward(x)); }, x);
//   loss.backward();
//
// A chosen module is a unit, and so is the root; parameters belong to the innermost unit around
// them, those tied across units to the innermost around all. Engine::describe shows which module
// became which unit. Unit<> and policies may be mixed; docs/migration.md says when to prefer which,
// and what a model must not do.
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
  // Returns of how many neighbours a unit is made that has `module`: 0: it is no unit; 1: it is one
  // alone; k: it is one together with its neighbours, k of them that answer k. true is 1.
  using Chooses = Callback<int(std::string_view fqn, const torch::nn::Module& module)>;

  // None: only fsdp::Unit makes units.
  UnitPolicy() = default;
  // `described`: by which words it is called in errors. `chooses` is asked of each module but the
  // root, outer ones first; alike on all ranks.
  UnitPolicy(std::string described, Chooses chooses)
      : described_(std::move(described)), chooses_(std::move(chooses)) {}

  bool is_set() const { return static_cast<bool>(chooses_); }
  int layers_of_unit(std::string_view fqn, const torch::nn::Module& module) const {
    return chooses_ ? chooses_(fqn, module) : 0;
  }
  const std::string& described() const { return described_; }
  bool operator==(const UnitPolicy&) const = default;

  // Chooses what either chooses. The engine refuses a module that both choose, for units of
  // different numbers of layers.
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

// Modules of any of these types, or derived from one; BlockImpl, or its holder Block. A class that
// registers its parameters in several layers of its own (nn::TransformerEncoderLayer) is one unit
// unless these are chosen as well.
template <class... M>
UnitPolicy by_type() {
  static_assert(sizeof...(M) > 0, "by_type<BlockImpl>(): name the types that are to be units");
  return {"by_type", [](std::string_view, const auto& module) {
            return (... || (dynamic_cast<const typename policy_detail::ImplOf<M>::Type*>(&module) !=
                            nullptr));
          }};
}

// The modules registered directly in the one that is called `fqn` ("encoder.layers"), a Sequential
// or ModuleList as a rule; "" is the root. With `layers` = k each k of them that are registered one
// after the other are one unit, the last unit has what is left: fewer and larger collectives. The
// unit is called "encoder.layers.0-3". Its forward begins at the first of its layers and ends
// behind the last; none of them may be a fsdp::Unit.
// Errors: InvalidArgument if `layers` is less than 1.
UnitPolicy each_child_of(std::string fqn, int layers = 1);

// Modules whose FQN `chooses` accepts.
UnitPolicy by_name(std::function<bool(std::string_view fqn)> chooses);

}  // namespace fsdp

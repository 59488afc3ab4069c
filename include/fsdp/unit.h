// Unit<T>: a module whose parameters are gathered together and whose gradients are reduced
// together.
//
// LibTorch's C++ modules have no forward hooks, so the program marks a unit by its type.
// `fsdp::Unit<Block>` is a Block with the same names, members and constructor arguments. Its
// forward gathers the parameters before it computes and frees them afterwards. Without an engine it
// behaves as the plain module, so the same class is also the unsharded reference.
//
//   struct NetImpl : torch::nn::Module {
//     fsdp::Unit<torch::nn::Embedding> tokens;
//     std::vector<fsdp::Unit<Block>> blocks;          // was std::vector<Block>
//   };
//
// T is a holder made by TORCH_MODULE, or a class derived from torch::nn::Module. The module must
// have one function `forward`, which is neither a template nor overloaded; const, noexcept, & and
// static are allowed.
//
// Call a unit through fsdp::Unit: unit(x) or unit->forward(x). forward's default arguments work. If
// all arguments are given, `{}` works, too. From a ModuleList, call
// list[i]->as<fsdp::Unit<Block>>()->forward(x). A call through a Block pointer (as<Block>())
// bypasses the engine, because forward is not virtual. Such a call throws when it reads a
// parameter. But if Block declares forward as virtual and not const, a call through a Block pointer
// works.
#pragma once

#include <fsdp/tensor_visit.h>
#include <fsdp/unit_base.h>
#include <fsdp/unit_module.h>
#include <fsdp/unit_run.h>
#include <fsdp/unit_signature.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fsdp {

// A unit's module. Its forward is one function with the parameters and result of M's forward.
// Therefore Sequential and AnyModule accept a unit wherever they accept M.
template <class M, class Forward = typename unit_detail::ForwardOf<M>::Type>
class UnitImpl;

// The base of UnitImpl. User code calls its forward through Unit's operator-> and as<Unit<…>>().
// This forward accepts M's default arguments.
template <class M, class Forward = typename unit_detail::ForwardOf<M>::Type>
class UnitBody;
template <class M, class R, class... A>
class UnitBody<M, R(A...)> : public UnitModule<M> {
 public:
  using UnitModule<M>::UnitModule;

  // `{}` can be an argument of this overload, because its parameters are not deduced.
  R forward(A... arguments) requires unit_detail::Takes<M, A...> {
    return call(std::forward<A>(arguments)...);
  }
  template <class... Given>
  R forward(Given&&... arguments) requires unit_detail::Takes<M, Given...> {
    return call(std::forward<Given>(arguments)...);
  }
  // Calls forward of a const unit if M's forward is const. The cast is safe because no unit is
  // created as a const object.
  template <class... Given>
  R forward(Given&&... arguments) const requires unit_detail::Takes<const M, Given...> {
    return const_cast<UnitBody*>(this)->call(std::forward<Given>(arguments)...);
  }
  // Calls forward, with M's default arguments for missing arguments. UnitImpl::forward accepts no
  // missing arguments.
  template <class... Given>
  R call(Given&&... arguments) {
    return call_as(std::index_sequence_for<Given...>{}, std::forward<Given>(arguments)...);
  }
  // Returns a new, unsharded unit with copied values.
  // Errors: StateError if an engine owns this unit.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (this->attached()) this->refuse_clone();
    // The copy that M::clone makes shares its registered tensors and children with the new unit.
    // This copy is destroyed here.
    return std::make_shared<UnitImpl<M>>(CloneOf{},
                                         *std::dynamic_pointer_cast<M>(M::clone(device)));
  }

 protected:
  ~UnitBody() override = default;  // only UnitImpl derives from UnitBody
  using typename UnitModule<M>::CloneOf;
  UnitBody(CloneOf tag, const M& plain) : UnitModule<M>(tag, plain) {}
  template <class... P, class... Given>
  R run_as(Given&&... arguments) {
    return unit_detail::run<R, P...>(
        *this, [this](P... inner) -> R { return M::forward(std::forward<P>(inner)...); },
        std::forward<Given>(arguments)...);
  }

 private:
  template <size_t... I, class... Given>
  R call_as(std::index_sequence<I...>, Given&&... arguments) {
    return run_as<unit_detail::PassAs<std::tuple_element_t<I, std::tuple<A...>>, Given>...>(
        std::forward<Given>(arguments)...);
  }

  bool built_ = this->built(*this);  // this initialiser runs directly after M's constructor
};

template <class M, class R, class... A>
class UnitImpl<M, R(A...)> : public UnitBody<M> {
 public:
  using UnitBody<M>::UnitBody;
  UnitImpl(typename UnitBody<M>::CloneOf tag, const M& plain) : UnitBody<M>(tag, plain) {}

  R forward(A... arguments) { return this->template run_as<A...>(std::forward<A>(arguments)...); }
};

// A holder of a unit, like the holders of TORCH_MODULE: Unit<torch::nn::Linear> layer(4, 4);
// layer(x); layer->weight. nullptr makes an empty holder. A copy of a holder shares the unit.
template <class T>
class Unit : public torch::nn::ModuleHolder<UnitImpl<unit_detail::ModuleOf<T>>> {
  using M = unit_detail::ModuleOf<T>;
  using Holder = torch::nn::ModuleHolder<UnitImpl<M>>;
  template <class Given>
  static constexpr bool kUnit = std::is_base_of_v<Holder, std::remove_cvref_t<Given>> ||
                                std::is_convertible_v<Given, std::shared_ptr<UnitBody<M>>>;

 public:
  using Impl = UnitImpl<M>;
  using ContainedType = UnitBody<M>;  // type behind as<Unit<T>>()

  Unit() {}  // not defaulted, so that a compiler error names the caller's line
  Unit(std::nullptr_t) : Holder(nullptr) {}
  Unit(std::shared_ptr<Impl> unit) : Holder(std::move(unit)) {}
  Unit(std::shared_ptr<ContainedType> unit) : Holder(std::static_pointer_cast<Impl>(unit)) {}
  // Makes a unit by calling a constructor of T's module. An existing module cannot become a unit.
  template <class First, class... More>
  explicit Unit(First&& first, More&&... more) requires(sizeof...(More) > 0 || !kUnit<First>)
      : Holder(make(std::forward<First>(first), std::forward<More>(more)...)) {}

  template <class... Given>
  auto operator()(Given&&... arguments) requires unit_detail::Takes<M, Given...> {
    return this->get()->call(std::forward<Given>(arguments)...);
  }
  ContainedType* get() { return Holder::get(); }
  const ContainedType* get() const { return Holder::get(); }
  ContainedType* operator->() { return get(); }
  const ContainedType* operator->() const { return get(); }
  ContainedType& operator*() { return *get(); }
  const ContainedType& operator*() const { return *get(); }

 private:
  template <class... Given>
  static std::shared_ptr<Impl> make(Given&&... given) {
    constexpr bool kMakes = std::is_constructible_v<Impl, Given...>;
    constexpr bool kExists = !kMakes && unit_detail::kExists<M, Given...>;
    static_assert(!kExists,
                  "fsdp::Unit constructs its module itself, so pass the arguments of the module's "
                  "constructor. To shard a module that exists already, use Options::units "
                  "(docs/migration.md)");
    static_assert(kMakes || kExists,
                  "fsdp::Unit<T>: no constructor of T's module accepts these arguments");
    if constexpr (kMakes) {
      return std::make_shared<Impl>(std::forward<Given>(given)...);
    } else {
      return nullptr;
    }
  }
};

// A scope in which the unit's parameters are gathered. Use it for methods other than forward, and
// for forwards that Unit does not support.
//   fsdp::UnitScope scope(*model->decoder, hidden);       // inputs with gradients
//   at::Tensor logits = model->decoder->generate_step(hidden);
//   scope.outputs(logits);                                // required in grad mode
class UnitScope {
 public:
  template <class... Inputs>
  explicit UnitScope(UnitBase& unit, const Inputs&... inputs) : call_(unit) {
    if (!call_.active()) return;
    (for_each_tensor(inputs, [&](const at::Tensor& tensor) { call_.input(tensor); }), ...);
    call_.begin();
  }
  // Ends the scope.
  // Requires: the program calls this function once, with every tensor that is used after the scope
  //   and may be differentiated.
  template <class... Outputs>
  void outputs(Outputs&... outputs) {
    if (!call_.active()) return;
    (for_each_tensor(outputs, [&](at::Tensor& tensor) { call_.output(tensor); }), ...);
    call_.end();
  }

 private:
  UnitCall call_;
};

}  // namespace fsdp

// Unit<M>: a module whose parameters travel together.
//
// LibTorch modules have no forward hooks in C++, so the boundary is a type. `fsdp::Unit<Block>` *is
// a* Block (same names, members and constructor arguments) whose forward asks the engine for its
// parameters before, and gives them back after. Without an engine it behaves as the plain module,
// so the same class is its own unsharded reference.
//
//   struct NetImpl : torch::nn::Module {
//     fsdp::Unit<torch::nn::Embedding> tokens;
//     std::vector<fsdp::Unit<Block>> blocks;          // was std::vector<Block>
//   };
//
// Call a unit through fsdp::Unit (operator(), or forward of UnitImpl inside Sequential and
// AnyModule): forward is not virtual, so a call through a Block pointer bypasses the engine and
// throws on the first parameter it reads.
#pragma once

#include <fsdp/recompute.h>
#include <fsdp/tensor_visit.h>
#include <fsdp/unit_module.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {

namespace unit_detail {

template <class M>
concept OneForward = requires {
  &M::forward;
};

// How a caller's argument of type Given (a forwarding reference's type) travels to a parameter of
// type Param: what forward may change for its caller goes by reference, all else as a value of
// ours.
template <class Param, class Given>
using PassAs = std::conditional_t<
    std::is_lvalue_reference_v<Param> && !std::is_const_v<std::remove_reference_t<Param>>, Given&&,
    std::conditional_t<std::is_lvalue_reference_v<Given> || std::is_const_v<Given>,
                       const std::decay_t<Given>&, std::decay_t<Given>>>;

// An argument as the module's own forward gets it: a copy with its tensors cast, or the caller's
// object (uncast) if forward may change it.
template <class A>
decltype(auto) prepare(UnitCall& call, std::remove_reference_t<A>& argument) {
  using Plain = std::remove_cvref_t<A>;
  if constexpr (std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) { call.input(tensor); });
    return static_cast<A>(argument);
  } else {
    Plain copy(static_cast<A&&>(argument));
    for_each_tensor(copy, [&](at::Tensor& tensor) { call.input(tensor); });
    return copy;
  }
}

// What forward may have written through an argument of type A.
template <class A>
void collect_written(UnitCall& call, std::remove_reference_t<A>& argument) {
  if constexpr (std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>) {
    for_each_tensor(argument, [&](at::Tensor& tensor) { call.written(tensor); });
  }
}

template <class R, class... A, class Forward>
R run_in(UnitCall& call, Forward&& forward, std::type_identity_t<A>&&... arguments) {
  static_assert(!std::is_reference_v<R>, "a unit's forward must return by value");
  if (!call.active()) return forward(std::forward<A>(arguments)...);
  // Braces order the preparation left to right; the tuple holds copies or references as prepared.
  std::tuple<decltype(prepare<A>(call, arguments))...> prepared{prepare<A>(call, arguments)...};
  call.begin();
  try {
    return std::apply(
        [&](auto&... inputs) -> R {
          if constexpr (std::is_void_v<R>) {
            forward(static_cast<decltype(prepare<A>(call, arguments))&&>(inputs)...);
            (collect_written<A>(call, arguments), ...);
            call.end();
          } else {
            R result = forward(static_cast<decltype(prepare<A>(call, arguments))&&>(inputs)...);
            for_each_tensor(result, [&](at::Tensor& tensor) { call.output(tensor); });
            (collect_written<A>(call, arguments), ...);
            call.end();
            return result;
          }
        },
        prepared);
  } catch (c10::Error& error) {
    call.explain(error);
    throw;
  }
}

template <class R, class... A, class Forward>
R run_once(UnitBase& unit, Forward&& forward, std::type_identity_t<A>&&... arguments) {
  UnitCall call(unit);
  return run_in<R, A...>(call, forward, std::forward<A>(arguments)...);
}

// Backward can call forward again: it is given copies, which it cannot change for its caller.
template <class R, class... A>
constexpr bool kCanRunAgain =
    !std::is_void_v<R> &&
    ((!(std::is_lvalue_reference_v<A> &&
        !std::is_const_v<
            std::remove_reference_t<A>>)&&std::is_copy_constructible_v<std::decay_t<A>>)&&...);

template <class R, class... A, class Forward>
R run(UnitBase& unit, Forward&& forward, std::type_identity_t<A>&&... arguments) {
  if (!unit.recomputes()) return run_once<R, A...>(unit, forward, std::forward<A>(arguments)...);
  if constexpr (kCanRunAgain<R, A...>) {
    return recompute(
        [&unit, forward](std::decay_t<A>... again) -> R {
          const UnitBase::Again running(unit);
          return run_once<R, std::decay_t<A>...>(unit, forward, std::move(again)...);
        },
        std::forward<A>(arguments)...);
  } else {
    unit.refuse_recompute();
  }
}

}  // namespace unit_detail

// Self is the UnitImpl below. forward keeps M's exact signature, so that Sequential and AnyModule
// accept a unit wherever they accept M.
template <class Self, class M, class R, class... A>
class UnitBody : public UnitModule<M> {
 public:
  using UnitModule<M>::UnitModule;

  R forward(A... arguments) { return run_as<A...>(std::forward<A>(arguments)...); }
  // The same with M's default arguments; Unit::operator() calls it.
  template <class... Given>
  R call(Given&&... arguments) {
    return call_as(std::index_sequence_for<Given...>{}, std::forward<Given>(arguments)...);
  }
  // A new, unsharded unit with copied values. Errors: StateError once an engine has taken this one.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    if (this->attached()) this->refuse_clone();
    // M's copy shares registered tensors and children with the clone, which ends here.
    return std::make_shared<Self>(typename UnitModule<M>::CloneOf{},
                                  *std::dynamic_pointer_cast<M>(M::clone(device)));
  }

 protected:
  using typename UnitModule<M>::CloneOf;
  UnitBody(CloneOf tag, const M& plain) : UnitModule<M>(tag, plain) {}

 private:
  template <size_t... I, class... Given>
  R call_as(std::index_sequence<I...>, Given&&... arguments) {
    return run_as<unit_detail::PassAs<std::tuple_element_t<I, std::tuple<A...>>, Given>...>(
        std::forward<Given>(arguments)...);
  }
  template <class... P, class... Given>
  R run_as(Given&&... arguments) {
    return unit_detail::run<R, P...>(
        *this, [this](P... inner) -> R { return M::forward(std::forward<P>(inner)...); },
        std::forward<Given>(arguments)...);
  }

  bool built_ = this->built(*this);  // an initialiser of ours runs right after M's constructor
};

template <class M, class Forward = decltype(&M::forward)>
class UnitImpl;
template <class M, class C, class R, class... A>
class UnitImpl<M, R (C::*)(A...)> : public UnitBody<UnitImpl<M>, M, R, A...> {
  using Body = UnitBody<UnitImpl<M>, M, R, A...>;

 public:
  using Body::Body;
  UnitImpl(typename Body::CloneOf tag, const M& plain) : Body(tag, plain) {}
};
template <class M, class C, class R, class... A>
class UnitImpl<M, R (C::*)(A...) const> : public UnitBody<UnitImpl<M>, M, R, A...> {
  using Body = UnitBody<UnitImpl<M>, M, R, A...>;

 public:
  using Body::Body;
  UnitImpl(typename Body::CloneOf tag, const M& plain) : Body(tag, plain) {}
};

// The holder, as TORCH_MODULE makes them: Unit<torch::nn::Linear> layer(4, 4); layer(x);
// layer->weight.
template <class Holder>
class Unit : public torch::nn::ModuleHolder<UnitImpl<typename Holder::ContainedType>> {
  using Base = torch::nn::ModuleHolder<UnitImpl<typename Holder::ContainedType>>;
  static_assert(unit_detail::OneForward<typename Holder::ContainedType>,
                "fsdp::Unit needs a module with exactly one, non-template forward");

 public:
  using Base::Base;
  template <class... A>
  auto operator()(A&&... arguments) {
    return this->get()->call(std::forward<A>(arguments)...);
  }
};

// For methods other than forward, and odd forwards: while alive, the unit's parameters are seated.
//   fsdp::UnitScope scope(*model->decoder, hidden);       // inputs with gradients
//   at::Tensor logits = model->decoder->generate_step(hidden);
//   scope.outputs(logits);                                // what flows on; required under grad
//   mode
class UnitScope {
 public:
  template <class... Inputs>
  explicit UnitScope(UnitBase& unit, const Inputs&... inputs) : call_(unit) {
    if (!call_.active()) return;
    (for_each_tensor(inputs, [&](const at::Tensor& tensor) { call_.input(tensor); }), ...);
    call_.begin();
  }
  // Ends the scope: call it once with every tensor that leaves it and may be differentiated.
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

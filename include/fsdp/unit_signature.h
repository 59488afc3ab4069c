// Checks that fsdp::Unit<T> is possible for T, and derives the signature of T's forward.
#pragma once

#include <fsdp/unit_base.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <type_traits>
#include <utility>

namespace fsdp::unit_detail {

template <class T>
concept Complete = requires {
  sizeof(T);
};
template <class T>
concept ModuleClass = Complete<T> && std::is_base_of_v<torch::nn::Module, T>;
template <class T>
concept ModuleHolder = Complete<T> && std::is_base_of_v<torch::detail::ModuleHolderIndicator, T> &&
    ModuleClass<typename T::ContainedType>;

template <class T>
struct Named {
  using Module = T;
};
template <ModuleHolder T>
struct Named<T> {
  using Module = typename T::ContainedType;
};

// Derives Type = R(A...) from the type of a pointer to forward, without forward's qualifiers.
template <class Member>
struct Declared {};
template <class R, class... A>
struct DeclaredAs {
  using Result = R;
  using Type = R(A...);
};
template <class C, class R, class... A, bool N>
struct Declared<R (C::*)(A...) noexcept(N)> : DeclaredAs<R, A...> {};
template <class C, class R, class... A, bool N>
struct Declared<R (C::*)(A...) const noexcept(N)> : DeclaredAs<R, A...> {};
template <class C, class R, class... A, bool N>
struct Declared<R (C::*)(A...)& noexcept(N)> : DeclaredAs<R, A...> {};
template <class C, class R, class... A, bool N>
struct Declared<R (C::*)(A...) const& noexcept(N)> : DeclaredAs<R, A...> {};
template <class R, class... A, bool N>
struct Declared<R (*)(A...) noexcept(N)> : DeclaredAs<R, A...> {};  // static

template <class M>
using ForwardOf = Declared<decltype(&M::forward)>;
template <class M>
concept OneForward = requires {
  typename ForwardOf<M>::Type;
};
template <class M>
concept ReturnsReference = std::is_reference_v<typename ForwardOf<M>::Result>;

// A module class that replaces a refused class, so that the static_assert is the compiler's only
// error.
struct Refused : torch::nn::Module {
  template <class... A>
  explicit Refused(A&&...) {}
  void forward() {}
};

// Finds the module class M from which fsdp::Unit<T> derives. If T is refused, the first failing
// assertion is the compiler's only error. M is declared before the assertions because Clang stops
// reading the class after a failed assertion.
template <class T>
class Subject {
  static constexpr bool kNamed =
      (ModuleHolder<T> || ModuleClass<T>)&&std::is_same_v<T, std::remove_cv_t<T>>;
  using Given = typename Named<std::conditional_t<kNamed, T, Refused>>::Module;
  static constexpr bool kDerivable = !std::is_final_v<Given> && !std::is_base_of_v<UnitBase, Given>;
  static constexpr bool kForward = !kDerivable || OneForward<Given>;
  static constexpr bool kByValue = !kDerivable || !kForward || !ReturnsReference<Given>;

 public:
  using M = std::conditional_t<kDerivable && kForward && kByValue, Given, Refused>;

 private:
  static_assert(kNamed,
                "fsdp::Unit<T>: T must be a module's holder (TORCH_MODULE) or a class derived from "
                "torch::nn::Module, and must be defined before its use here; write Unit<Block>, "
                "not Unit<Block*>, Unit<std::shared_ptr<BlockImpl>> or Unit<const Block>");
  static_assert(kDerivable,
                "fsdp::Unit<T> derives from T's module class, so this class must not be final, and "
                "it must not be a unit already");
  static_assert(kForward,
                "fsdp::Unit<T> runs the forward of T's module, which must be one public function: "
                "no template, not overloaded, not && or volatile. Rename the other overloads "
                "(fsdp::UnitScope runs them), wrap the module in a module that has such a forward, "
                "or shard the unchanged module by Options::units (docs/migration.md)");
  static_assert(kByValue,
                "fsdp::Unit<T>: the forward of T's module must return by value, or return nothing, "
                "because the engine stores the returned value");
};

template <class T>
using ModuleOf = typename Subject<T>::M;

// Is true if M::forward can be called with these arguments. Default arguments and implicit
// conversions are considered.
template <class M, class... Given>
concept Takes = requires(M& module) {
  module.forward(std::declval<Given>()...);
};

template <class A, class M>
concept Kin = std::is_base_of_v<torch::nn::Module, std::remove_cvref_t<A>> &&
    (std::is_base_of_v<std::remove_cvref_t<A>, M> || std::is_base_of_v<M, std::remove_cvref_t<A>>);
// Is true if A is a module, a pointer to a module or a holder of a module, and this module is or
// may be an M.
template <class M, class... A>
constexpr bool kExists = false;
template <class M, class A>
constexpr bool kExists<M, A> = Kin<A, M> || requires(A& given) {
  requires Kin<decltype(*given), M>;
};

}  // namespace fsdp::unit_detail

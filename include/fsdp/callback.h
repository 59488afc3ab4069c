// Callback: a std::function that can be compared, so that two Options objects can be compared.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace fsdp {

template <class Signature>
class Callback;

// A std::function with equality. Two callbacks are equal if both are unset, or if one is a copy of
// the other. Copies share one function. Calling an unset callback throws std::bad_function_call.
template <class R, class... A>
class Callback<R(A...)> {
  using Function = std::function<R(A...)>;

 public:
  Callback() = default;
  // Sets the function. nullptr or an empty std::function leaves the callback unset.
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Callback> && std::constructible_from<Function, F>)
      Callback(F&& f)
      : Callback(Function(std::forward<F>(f)), 0) {}

  explicit operator bool() const { return function_ != nullptr; }
  R operator()(A... arguments) const {
    if (!function_) throw std::bad_function_call();
    return (*function_)(std::forward<A>(arguments)...);
  }
  bool operator==(const Callback&) const = default;

 private:
  Callback(Function f, int /*set*/)
      : function_(f ? std::make_shared<const Function>(std::move(f)) : nullptr) {}

  std::shared_ptr<const Function> function_;  // shared by copies
};

}  // namespace fsdp

// Runs a unit's forward. Passes the tensors of the arguments and of the result to the engine, which
// casts these tensors and installs hooks.
#pragma once

#include <fsdp/recompute.h>
#include <fsdp/tensor_visit.h>
#include <fsdp/unit_base.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace fsdp::unit_detail {

// The type of an argument that a unit passes to its module's forward. Param is the type of
// forward's parameter. Given is the deduced type of the forwarding reference. The result is a
// reference if forward can change the caller's object; otherwise it is a value.
template <class Param, class Given>
using PassAs = std::conditional_t<
    std::is_lvalue_reference_v<Param> && !std::is_const_v<std::remove_reference_t<Param>>, Given&&,
    std::conditional_t<std::is_lvalue_reference_v<Given> || std::is_const_v<Given>,
                       const std::decay_t<Given>&, std::decay_t<Given>>>;

// Returns an argument for the module's own forward. If forward can change the argument, returns the
// caller's object without casts. If forward cannot change the argument, returns a copy with cast
// tensors.
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

// Registers the tensors that forward may have written to through an argument of type A.
template <class A>
void collect_written(UnitCall& call, std::remove_reference_t<A>& argument) {
  if constexpr (std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>>) {
    for_each_tensor(argument, [&](at::Tensor& tensor) { call.written(tensor); });
  }
}

template <class R, class... A, class Forward>
R run_in(UnitCall& call, Forward&& forward, std::type_identity_t<A>&&... arguments) {
  if (!call.active()) return forward(std::forward<A>(arguments)...);
  // The braces make the calls of prepare run from left to right. The tuple holds copies or
  // references.
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

// Is true if backward can call forward again with copies of the arguments: forward returns a value,
// cannot change the caller's objects, and the arguments can be copied.
template <class R, class... A>
constexpr bool kCanRunAgain =
    !std::is_void_v<R> &&
    ((!(std::is_lvalue_reference_v<A> &&
        !std::is_const_v<
            std::remove_reference_t<A>>)&&std::is_copy_constructible_v<std::decay_t<A>>)&&...);

template <class R, class... A, class Forward>
R run(UnitBase& unit, Forward&& forward, std::type_identity_t<A>&&... arguments) {
  if (!unit.recomputes()) {
    UnitCall call(unit);
    return run_in<R, A...>(call, forward, std::forward<A>(arguments)...);
  }
  if constexpr (kCanRunAgain<R, A...>) {
    return recompute_detail::recompute(
        &unit,
        [&unit, forward](std::decay_t<A>... again) -> R {
          const UnitBase::Again running(unit);
          UnitCall call(unit);
          return run_in<R, std::decay_t<A>...>(call, forward, std::move(again)...);
        },
        std::forward<A>(arguments)...);
  } else {
    unit.refuse_recompute();
  }
}

}  // namespace fsdp::unit_detail

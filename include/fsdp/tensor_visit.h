// Finds the tensors inside the arguments and results of a unit's forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/aggregate_fields.h>

#include <concepts>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fsdp {
namespace visit_detail {

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};
template <class T>
concept OptionalLike = requires(T value) {
  typename T::value_type;
  { value.has_value() } -> std::same_as<bool>;
  *value;
};
template <class T>
concept SelfVisiting = requires(T& value, void (*visit)(at::Tensor&)) {
  visit_tensors(value, visit);
};
template <class T>
concept TensorPointer =
    std::is_pointer_v<T> && std::is_same_v<std::remove_cv_t<std::remove_pointer_t<T>>, at::Tensor>;
template <class T>
concept TensorFree =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> ||
    (std::is_pointer_v<T> && !TensorPointer<T>) ||
    std::is_convertible_v<T, std::string_view> ||
    std::is_convertible_v<T, std::string> ||  // std::filesystem::path is a range of paths
    std::is_same_v<T, std::nullopt_t> || std::is_same_v<T, at::ScalarType> ||
    std::is_same_v<T, at::Device>;

template <class T>
struct Opaque {
  static_assert(
      sizeof(T) == 0,
      "fsdp cannot see whether this type holds tensors: define a function visit_tensors(T&, visit) "
      "for it. Instead of a pointer to a tensor, pass the tensor or a reference to it");
};

}  // namespace visit_detail

// Calls visit(at::Tensor&) for every tensor in `value`. `value` can be a tensor, or a std::tuple,
// std::pair, std::array, optional, range, map or aggregate (of up to 16 fields) of such values. It
// can also be of a type T that has a free function `visit_tensors(T&, auto visit)`, found by
// argument-dependent lookup. Pointers are not followed. Any other type that could contain a tensor
// does not compile.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  using namespace visit_detail;
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    constexpr bool kWritable = std::is_invocable_v<Visit&, T&>;
    static_assert(kWritable,
                  "fsdp replaces tensors (by casts, or by tensors of its own graph) and cannot "
                  "replace a const tensor: pass or return at::Tensor, std::vector<at::Tensor> "
                  "instead of at::TensorList, and structs without const members");
    if constexpr (kWritable) visit(value);
  } else if constexpr (SelfVisiting<T>) {
    visit_tensors(value, visit);
  } else if constexpr (TensorFree<Plain>) {
    // nothing inside
  } else if constexpr (OptionalLike<Plain>) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (std::ranges::range<Plain>) {
    if constexpr (!TensorFree<std::remove_cvref_t<std::ranges::range_value_t<Plain>>>) {
      static_assert(!std::ranges::view<Plain>,
                    "fsdp replaces tensors (by casts, or by tensors of its own graph), and in a "
                    "view (std::span) it would replace the caller's tensors: pass or return "
                    "std::vector<at::Tensor>");
      for (auto&& element : value) for_each_tensor(element, visit);
    }
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... fields) { (for_each_tensor(fields, visit), ...); }, value);
  } else if constexpr (std::is_aggregate_v<Plain>) {
    // `const F&` can also bind to a bit field. The const_cast is safe, because no field of a
    // move-assignable type is const.
    if constexpr (std::is_move_assignable_v<T>) {
      with_fields(value, [&]<class... F>(const F&... fields) {
        (for_each_tensor(const_cast<F&>(fields), visit), ...);
      });
    } else {
      with_fields(value, [&](auto&... fields) { (for_each_tensor(fields, visit), ...); });
    }
  } else {
    Opaque<Plain>{};
  }
}

}  // namespace fsdp

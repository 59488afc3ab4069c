// Finds the tensors inside what a unit's forward takes and returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace fsdp {
namespace visit_detail {

struct Anything {
  template <class T>
  operator T() const;
};
template <class T, class... Fields>
constexpr int field_count() {
  if constexpr (!requires { T{std::declval<Fields>()..., Anything{}}; } || sizeof...(Fields) == 8) {
    return sizeof...(Fields);
  } else {
    return field_count<T, Fields..., Anything>();
  }
}

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
concept TensorFree = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_pointer_v<T> ||
    std::is_convertible_v<T, std::string_view> || std::is_same_v<T, std::nullopt_t> ||
    std::is_same_v<T, at::ScalarType> || std::is_same_v<T, at::Device>;

}  // namespace visit_detail

// Calls visit(at::Tensor&) for every tensor in `value`: a tensor, std::tuple, pair or array,
// optional, range, map, an aggregate of up to 8 such fields, or a type with a free function
// `visit_tensors(T&, auto visit)` found by argument-dependent lookup. Anything else that could hide
// a tensor does not compile.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  using namespace visit_detail;
  using Plain = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    visit(value);
  } else if constexpr (SelfVisiting<T>) {
    visit_tensors(value, visit);
  } else if constexpr (TensorFree<Plain>) {
    // nothing inside
  } else if constexpr (OptionalLike<Plain>) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (std::ranges::range<Plain>) {
    if constexpr (!TensorFree<std::remove_cvref_t<std::ranges::range_value_t<Plain>>>) {
      for (auto&& element : value) for_each_tensor(element, visit);
    }
  } else if constexpr (TupleLike<Plain>) {
    std::apply([&](auto&... fields) { (for_each_tensor(fields, visit), ...); }, value);
  } else if constexpr (std::is_aggregate_v<Plain>) {
    constexpr int kFields = field_count<Plain>();
    static_assert(kFields <= 8,
                  "aggregates of up to 8 fields are looked into; give the type a "
                  "visit_tensors(T&, visit) function");
    auto each = [&](auto&... fields) { (for_each_tensor(fields, visit), ...); };
    if constexpr (kFields == 1) {
      auto& [a] = value;
      each(a);
    } else if constexpr (kFields == 2) {
      auto& [a, b] = value;
      each(a, b);
    } else if constexpr (kFields == 3) {
      auto& [a, b, c] = value;
      each(a, b, c);
    } else if constexpr (kFields == 4) {
      auto& [a, b, c, d] = value;
      each(a, b, c, d);
    } else if constexpr (kFields == 5) {
      auto& [a, b, c, d, e] = value;
      each(a, b, c, d, e);
    } else if constexpr (kFields == 6) {
      auto& [a, b, c, d, e, f] = value;
      each(a, b, c, d, e, f);
    } else if constexpr (kFields == 7) {
      auto& [a, b, c, d, e, f, g] = value;
      each(a, b, c, d, e, f, g);
    } else if constexpr (kFields == 8) {
      auto& [a, b, c, d, e, f, g, h] = value;
      each(a, b, c, d, e, f, g, h);
    }
  } else {
    static_assert(sizeof(T) == 0,
                  "fsdp cannot see whether this type holds tensors: give it a "
                  "visit_tensors(T&, visit) function");
  }
}

}  // namespace fsdp

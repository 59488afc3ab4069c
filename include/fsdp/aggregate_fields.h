// Finds the fields of an aggregate. C++20 cannot list the fields, so this header counts the
// initialisers that the aggregate accepts, and declares a structured binding with the same number
// of names.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace fsdp::visit_detail {

inline constexpr int kMostFields = 16;

struct Anything {
  template <class T>
  operator T() const;
};
// A type that converts to each base class of T and to no other type. count_fields uses it to detect
// base classes.
template <class T>
struct AnyBaseOf {
  template <class Base>
  requires(std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>) operator Base() const;
};
template <size_t>
using AnythingAt = Anything;

// Returns the number of initialisers that T accepts. Returns -1 if T has a field that `Anything`,
// which converts to any type, cannot initialise. Returns a number above kMostFields if T has too
// many fields.
template <class T, class... Fields>
constexpr int count_initialisers() {
  if constexpr (sizeof...(Fields) <= kMostFields && requires {
                  T{std::declval<Fields>()..., Anything{}};
                }) {
    return count_initialisers<T, Fields..., Anything>();
  } else if constexpr (requires { T{std::declval<Fields>()..., {}}; }) {
    return -1;
  } else {
    return sizeof...(Fields);
  }
}

// Returns true if the field after the fields `Before` is an array. count_initialisers counts n
// initialisers for an array of n elements, because it writes no braces around them. If the array
// has its own braces, it is one initialiser, and the n - 1 initialisers at the end are too many.
template <class T, size_t... Before, size_t... After>
constexpr bool has_array_at(std::index_sequence<Before...>, std::index_sequence<After...>) {
  return requires { T{AnythingAt<Before>{}..., {Anything{}, Anything{}}}; }
  &&!requires { T{AnythingAt<Before>{}..., {Anything{}, Anything{}}, AnythingAt<After>{}...}; };
}
template <class T, size_t... I>
constexpr bool has_array(std::index_sequence<I...>) {
  return (has_array_at<T>(std::make_index_sequence<I>{},
                          std::make_index_sequence<sizeof...(I) - 1 - I>{}) ||
          ...);
}

// Returns the number of fields of T. Returns -1 if a structured binding of the fields is
// impossible: T is a union, or has base classes, arrays, references, or more than kMostFields
// fields.
template <class T>
constexpr int count_fields() {
  if constexpr (std::is_union_v<T> || requires { T{AnyBaseOf<T>{}}; }) {
    return -1;
  } else {
    constexpr int kCount = count_initialisers<T>();
    if constexpr (kCount < 1 || kCount > kMostFields) {
      return -1;
    } else {
      return has_array<T>(std::make_index_sequence<kCount>{}) ? -1 : kCount;
    }
  }
}

// The number of fields of T. The static_assert is in a class template, so for each type the
// compiler reports a failure once, even if many calls visit the type.
template <class T>
struct Fields {
  static constexpr int kCount = count_fields<T>();
  static_assert(kCount > 0,
                "fsdp finds the tensors in an aggregate only if it has at most 16 fields and no "
                "base class, and if no field is an array (use std::array), a reference or a union: "
                "for this type, define a function visit_tensors(T&, visit)");
};

#define FSDP_BIND_FIELDS(count, ...)                            \
  if constexpr (Fields<std::remove_cv_t<T>>::kCount == count) { \
    auto& [__VA_ARGS__] = value;                                \
    use(__VA_ARGS__);                                           \
  }

// Calls use(field…) with every field of an aggregate.
template <class T, class Use>
void with_fields(T& value, const Use& use) {
  FSDP_BIND_FIELDS(1, a)
  FSDP_BIND_FIELDS(2, a, b)
  FSDP_BIND_FIELDS(3, a, b, c)
  FSDP_BIND_FIELDS(4, a, b, c, d)
  FSDP_BIND_FIELDS(5, a, b, c, d, e)
  FSDP_BIND_FIELDS(6, a, b, c, d, e, f)
  FSDP_BIND_FIELDS(7, a, b, c, d, e, f, g)
  FSDP_BIND_FIELDS(8, a, b, c, d, e, f, g, h)
  FSDP_BIND_FIELDS(9, a, b, c, d, e, f, g, h, i)
  FSDP_BIND_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  FSDP_BIND_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  FSDP_BIND_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  FSDP_BIND_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  FSDP_BIND_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  FSDP_BIND_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  FSDP_BIND_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
}

#undef FSDP_BIND_FIELDS

}  // namespace fsdp::visit_detail

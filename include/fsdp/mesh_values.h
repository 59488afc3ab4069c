// The values that Mesh::sum, mean and max accept: numbers, tensors of one element, and arrays and
// vectors of these.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace fsdp::mesh_detail {

[[noreturn]] void refuse_elements(int64_t numel, std::string_view label);
[[noreturn]] void refuse_beyond_int64(uint64_t value, std::string_view label);

[[noreturn]] void refuse_weight(double weight, std::string_view label);

// A type with a tensor's member functions. The concept does not name at::Tensor, because this
// header does not include LibTorch.
template <class T>
concept Tensor = requires(const T& value) {
  value.numel();
  value.template item<double>();
};

// Returns an integer as int64_t and any other value as double.
template <class T>
auto number(const T& value, std::string_view label) {
  if constexpr (std::integral<T>) {
    if constexpr (std::unsigned_integral<T> && sizeof(T) == sizeof(int64_t)) {
      if (value > static_cast<T>(std::numeric_limits<int64_t>::max())) {
        refuse_beyond_int64(value, label);
      }
    }
    return static_cast<int64_t>(value);
  } else if constexpr (std::floating_point<T>) {
    return static_cast<double>(value);
  } else {
    static_assert(Tensor<T>,
                  "a value to reduce over the ranks must be a number, a tensor of one element, or "
                  "a std::array or std::vector of these");
    if (value.numel() != 1) refuse_elements(value.numel(), label);
    return static_cast<double>(value.template item<double>());
  }
}

// A weight of a mean: a number or a tensor of one element.
template <class T>
concept Weight = std::is_arithmetic_v<T> || Tensor<T>;
inline double weight(const Weight auto& value, std::string_view label) {
  const auto weight = static_cast<double>(number(value, label));
  if (!(weight >= 0 && weight <= std::numeric_limits<double>::max())) refuse_weight(weight, label);
  return weight;
}

// Returns f(value) for one value, and an array or vector of f(element) for several values.
template <class T, class F>
auto each(const T& value, F f) {
  return f(value);
}
template <class T, size_t N, class F>
auto each(const std::array<T, N>& values, F f) {
  return std::apply(
      [&](const auto&... value) {
        return std::array<std::invoke_result_t<F&, const T&>, N>{f(value)...};
      },
      values);
}
template <class T, class F>
auto each(const std::vector<T>& values, F f) {
  std::vector<std::invoke_result_t<F&, const T&>> results;
  for (const T& value : values) results.push_back(f(value));
  return results;
}

template <class T>
auto span_of(T& numbers) {
  if constexpr (std::is_arithmetic_v<T>) {
    return std::span<T>(&numbers, 1);
  } else {
    return std::span<typename T::value_type>(numbers);
  }
}

}  // namespace fsdp::mesh_detail

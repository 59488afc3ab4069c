// Implements the arithmetic of kernels/reduce.h.
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/element_cast.h"
#include "kernels/reduce.h"

namespace fsdp::kernels {

// The type in which elements are accumulated: fp32 for bfloat16 and float16, otherwise the element
// type.
template <class Element>
using AccumulatorOf = std::conditional_t<std::is_arithmetic_v<Element>, Element, float>;

template <class Element>
FSDP_ELEMENT AccumulatorOf<Element> loaded(Element value) {
  if constexpr (std::is_arithmetic_v<Element>) {
    return value;
  } else {
    return to_float(value);
  }
}

template <class Element>
FSDP_ELEMENT Element stored(AccumulatorOf<Element> value) {
  if constexpr (std::is_arithmetic_v<Element>) {
    return value;
  } else {
    return from_float<Element>(value);
  }
}

template <ReduceOp kOp, class Accumulator>
FSDP_ELEMENT Accumulator combined(Accumulator a, Accumulator b) {
  if constexpr (kOp == ReduceOp::kMax) {
    // A comparison with NaN is false, so `b != b` selects b if it is NaN, and a NaN in a is kept.
    return (b > a) | (b != b) ? b : a;
  } else {
    return static_cast<Accumulator>(a + b);
  }
}

template <ReduceOp kOp, class Accumulator>
FSDP_ELEMENT Accumulator finished(Accumulator sum, size_t count) {
  if constexpr (kOp == ReduceOp::kAvg && std::is_floating_point_v<Accumulator>) {
    return sum / static_cast<Accumulator>(count);
  } else {
    return sum;
  }
}

// Calls visit(Element{}) with the type in which elements of this dtype are combined. Integers are
// summed as unsigned integers of the same size, because their overflow wraps and is defined. The
// bits of the sum are the same.
template <ReduceOp kOp, class Visit>
FSDP_ELEMENT void visit_reduced(DType dtype, Visit visit) {
  constexpr bool kSigned = kOp == ReduceOp::kMax;
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kBFloat16:
      return visit(BFloat16{});
    case DType::kFloat16:
      return visit(Float16{});
    case DType::kFloat64:
      return visit(double{});
    case DType::kInt64:
      return visit(std::conditional_t<kSigned, int64_t, uint64_t>{});
    case DType::kInt32:
      return visit(std::conditional_t<kSigned, int32_t, uint32_t>{});
    case DType::kUInt8:
      return visit(uint8_t{});
  }
}

}  // namespace fsdp::kernels

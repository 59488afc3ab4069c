// Activation recomputation (checkpointing): what a function makes on its way is not kept for
// backward, which runs the function a second time instead.
//
//   at::Tensor y = fsdp::recompute([&](const at::Tensor& h) { return block(norm(h)); }, x);
//
// For units there are Options::recompute and UnitOptions::recompute.
#pragma once

#include <fsdp/tensor_visit.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace fsdp {
class UnitBase;
namespace recompute_detail {

using Tensors = std::vector<at::Tensor>;
using Segment = std::function<Tensors(const Tensors& inputs)>;
// Runs the segment without a graph, and once more in backward. Its outputs as the graph has them.
// `unit`: whose forward the segment is; null: no unit's.
Tensors run(Segment segment, const Tensors& inputs, const UnitBase* unit);

template <class Values>
Tensors take(Values& values) {
  Tensors tensors;
  for_each_tensor(values, [&](at::Tensor& tensor) { tensors.push_back(std::move(tensor)); });
  return tensors;
}

template <class Values>
void put(Values& values, const Tensors& tensors) {
  size_t next = 0;
  for_each_tensor(values, [&](at::Tensor& tensor) { tensor = tensors[next++]; });
}

template <class Fn, class... Inputs>
auto recompute(const UnitBase* unit, Fn fn, Inputs&&... inputs) {
  using Given = std::tuple<std::decay_t<Inputs>...>;
  using Result = std::invoke_result_t<Fn&, std::decay_t<Inputs>&&...>;
  static_assert(!std::is_void_v<Result> && !std::is_reference_v<Result>,
                "a recomputed function returns its outputs by value");
  Given given(std::forward<Inputs>(inputs)...);
  const Tensors tensors = take(given);
  const auto first = std::make_shared<std::optional<Result>>();  // of the run in forward
  const auto again_in_backward =
      [fn = std::move(fn), given = std::move(given),
       kept = std::weak_ptr<std::optional<Result>>(first)](const Tensors& now) mutable {
        Given again = given;
        put(again, now);
        Result result = std::apply(fn, std::move(again));
        Result copy = result;
        if (const auto keep = kept.lock()) *keep = std::move(result);
        return take(copy);
      };
  const Tensors outputs = recompute_detail::run(again_in_backward, tensors, unit);
  put(**first, outputs);
  return std::move(**first);
}

}  // namespace recompute_detail

// Returns fn(inputs…). Inputs and the result are whatever for_each_tensor (tensor_visit.h) looks
// into; inputs are copied, tensors with their memory shared; any of them may be undefined.
// Backward runs fn again, on the same inputs and in grad mode both times, with the random numbers
// drawn as in forward, in LibTorch's generator of the CPU and in that of the inputs' device. It
// finds the buffers and training flags of an engine's units as its first run did: of those that
// run in fn, and of the one whose forward calls it. Afterwards generators, buffers and flags go on
// as if it had not been, also where fn throws. What else fn does happens twice. Without grad mode
// it is called once.
// Requires: gradients flow into fn through its inputs and through parameters, not through tensors
//   that it captures. In forward fn makes no graph: what it differentiates itself, it cannot.
// Errors: InvalidArgument where fn changes an input in place. StateError, from backward, where fn
//   draws other random numbers than in forward: also where ranks are threads, which share
//   LibTorch's generator, and one of them draws in between; where it returns other tensors; where
//   a large buffer that it reads has changed since; and under autograd::grad and create_graph.
template <class Fn, class... Inputs>
auto recompute(Fn fn, Inputs&&... inputs) {
  return recompute_detail::recompute(nullptr, std::move(fn), std::forward<Inputs>(inputs)...);
}

}  // namespace fsdp

// Activation recomputation (checkpointing): backward runs a function a second time, so the
// activations of the function are not kept.
//
//   at::Tensor y = fsdp::recompute([&](const at::Tensor& h) { return block(norm(h)); }, x);
//
// Options::recompute and UnitOptions::recompute apply this to whole units.
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
// Runs `segment`, the code to be recomputed, without recording its graph. Returns outputs whose
// graph runs the segment again in backward. If the segment is a unit's forward, `unit` is this
// unit; otherwise `unit` is null.
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
                "a recomputed function must return its outputs by value");
  Given given(std::forward<Inputs>(inputs)...);
  const Tensors tensors = take(given);
  const auto first = std::make_shared<std::optional<Result>>();  // result of the run in forward
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

// Returns fn(inputs…). for_each_tensor (tensor_visit.h) must find the tensors of inputs and result.
// These tensors may be undefined. Inputs are copied; the copied tensors share memory with the
// caller's tensors.
// Effects: backward runs fn again on the same inputs. Both runs have grad mode on and draw the same
//   random numbers from LibTorch's generators (the CPU's and that of the inputs' device). In the
//   second run, buffers and training flags have the same values as in the first run. This is true
//   for units that run in fn and for the unit whose forward calls recompute. After the second run,
//   generators, buffers and flags get their previous values back, also if fn throws. Other side
//   effects of fn happen twice. If grad mode is off, fn runs only once.
// Requires: a tensor that fn reads and that needs a gradient is an input of fn or a parameter, not
//   another captured tensor. fn must not call autograd itself, because no graph is recorded in the
//   first run.
// Errors: InvalidArgument if fn changes an input in place. backward throws StateError if fn draws
//   other random numbers than in forward, if fn returns other tensors, if a large buffer that fn
//   reads has changed, or if the program uses autograd::grad or create_graph. (Thread ranks share
//   LibTorch's generator, so fn also draws other random numbers if another thread rank draws in
//   between.)
template <class Fn, class... Inputs>
auto recompute(Fn fn, Inputs&&... inputs) {
  return recompute_detail::recompute(nullptr, std::move(fn), std::forward<Inputs>(inputs)...);
}

}  // namespace fsdp

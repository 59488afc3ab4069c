// What a unit's parameters, the tensors of the user's module, are views of: a storage each, which
// is pointed at the memory where the parameter lies whole, or at nothing.
//
// [Note: guarded gradients]
// A sharded parameter has no gradient of its own: what autograd makes is captured on its way. So
// that an optimizer or a clip over module->parameters() does not do nothing in silence, `.grad` of
// every trainable parameter is a tensor whose memory cannot be accessed; whoever touches it gets a
// message with the fix. Optimizers take it away (zero_grad), so it is put back at each forward and
// at each backward's end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libtorch/torch_compat.h"
#include "plan/shard_layout.h"

namespace fsdp {

// "unit 'layers.0'", "unit '(root)'": how texts name a unit.
std::string name_of_unit(std::string_view fqn);

class ParameterBindings {
 public:
  // Binds `parameters` (layout.parameters() order), unseated. They keep their TensorImpl: module
  // members, names, requires_grad and version counters stay. `unit` is the unit's FQN; with an
  // `owner`, operators on the parameters are told to it (touch_trap.h).
  ParameterBindings(const ShardLayout& layout, std::vector<at::Tensor> parameters,
                    std::string_view unit, touch_trap::Touched* owner = nullptr);

  // The owner is told of nothing any more.
  ~ParameterBindings();
  ParameterBindings(const ParameterBindings&) = delete;
  ParameterBindings& operator=(const ParameterBindings&) = delete;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // segments[i]: where segment i of the layout lies whole. Remembers the parameters' versions.
  void bind(std::span<std::byte* const> segments);
  void unbind();

  // The first parameter whose version is another than when it was seated, or since forget_changes.
  std::optional<int> first_changed() const;
  bool has_changed(int parameter) const;
  void forget_changes();

  // A parameter whose storage was replaced (set_data, torch::load); nothing if there is none.
  std::optional<int> first_replaced() const;
  // Takes the values of replaced ones into the memory where the parameters are seated, and makes
  // them views of it again. Errors: StateError if shape or type were changed.
  void adopt_replaced();

  // Errors: StateError if somebody has put a gradient of his own there.
  void guard_gradients();
  // Whether somebody has taken guards away.
  enum class Guards : uint8_t { kThere, kSomeGone, kGone };
  Guards guards() const;

  // What an access to a parameter throws from now on; `reason` follows its name. Gradients are
  // guarded no longer, and the owner is told of nothing.
  void set_reason(std::string_view reason, std::string_view hint);

 private:
  // Makes the tensor a view of its storage.
  void adopt(int parameter) const;
  std::string name(int parameter) const;

  const ShardLayout& layout_;
  std::string unit_;
  std::vector<at::Tensor> tensors_;
  std::vector<torch_compat::BoundStorage> storages_;
  std::vector<at::Tensor> guards_;  // undefined for parameters without gradient
  std::vector<int64_t> versions_;   // when seated
};

}  // namespace fsdp

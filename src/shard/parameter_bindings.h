// ParameterBindings binds and unbinds a unit's parameters, the tensors of the user's module. Each
// is a view of a storage of its own, which points at whole memory or at nothing.
//
// [Note: guarded gradients] A sharded parameter has no gradient: the engine captures it before it
// becomes `.grad`. Without a guard an optimizer or a clip over module->parameters() would silently
// do nothing. So the `.grad` of every trainable parameter is a tensor without accessible memory: an
// access throws a message with the remedy. zero_grad removes the guard, so it is set again at each
// forward and at the end of each backward.
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

// Returns a unit's name for texts: "unit 'layers.0'", "unit '(root)'".
std::string name_of_unit(std::string_view fqn);

class ParameterBindings {
 public:
  // Makes `parameters` (in layout.parameters() order) views of their storages, unbound. They keep
  // their TensorImpl, so module members, names, requires_grad and version counters stay. `unit` is
  // the unit's FQN. With an `owner` the trap reports operators on the parameters (touch_trap.h).
  ParameterBindings(const ShardLayout& layout, std::vector<at::Tensor> parameters,
                    std::string_view unit, touch_trap::Touched* owner = nullptr);

  // Ends the reports to the owner.
  ~ParameterBindings();
  ParameterBindings(const ParameterBindings&) = delete;
  ParameterBindings& operator=(const ParameterBindings&) = delete;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Binds all parameters: segments[i] is the whole memory of the layout's segment i. Records the
  // parameters' versions.
  void bind(std::span<std::byte* const> segments);
  void unbind();

  // Returns the first parameter whose version differs from that at bind or forget_changes.
  std::optional<int> first_changed() const;
  bool has_changed(int parameter) const;
  void forget_changes();

  // Returns the first parameter whose storage was replaced (set_data, torch::load).
  std::optional<int> first_replaced() const;
  // Copies the values of replaced parameters into the bound memory and makes the parameters views
  // of their storages again. Errors: StateError if a shape or type was changed.
  void adopt_replaced();

  // Sets the guards. Errors: StateError if a parameter was given a gradient by hand.
  void guard_gradients();
  // Returns how many of the guards set are still in place.
  enum class Guards : uint8_t { kThere, kSomeGone, kGone };
  Guards guards() const;

  // Sets the message that an access to a parameter throws from now on; `reason` follows its name.
  // Removes the guards of gradients and ends the reports to the owner.
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
  std::vector<int64_t> versions_;   // at bind or forget_changes
};

}  // namespace fsdp

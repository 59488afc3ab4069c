// ParameterBindings binds and unbinds a unit's parameters, which are the tensors of the user's
// module. Each parameter is a view of its own storage. The storage points at whole memory while the
// parameter is bound, and at null otherwise.
//
// [Note: guarded gradients] A sharded parameter has no `.grad`, because the engine captures the
// gradient before autograd stores it. So an optimizer or a gradient clip over module->parameters()
// would silently do nothing. To prevent this, the `.grad` of every trainable parameter is a guard:
// a tensor without accessible memory. An access to the guard throws an error that contains the
// remedy. zero_grad removes the guard, so it is set again at each forward and at the end of each
// backward.
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

// Returns a unit's name for messages: "unit 'layers.0'", "unit '(root)'".
std::string name_of_unit(std::string_view fqn);

class ParameterBindings {
 public:
  // Makes `parameters` views of their own storages, unbound. `parameters` must be in the order of
  // layout.parameters(). They keep their TensorImpl, so module members, names, requires_grad and
  // version counters stay. `unit` is the unit's FQN. If `owner` is not null, the trap reports
  // operators on the parameters to this owner (touch_trap.h).
  ParameterBindings(const ShardLayout& layout, std::vector<at::Tensor> parameters,
                    std::string_view unit, touch_trap::Touched* owner = nullptr);

  // After the destructor the trap (touch_trap.h) reports no operators to the owner.
  ~ParameterBindings();
  ParameterBindings(const ParameterBindings&) = delete;
  ParameterBindings& operator=(const ParameterBindings&) = delete;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

  // Binds all parameters. segments[i] is the memory of all elements of the layout's segment i, not
  // only of this rank's piece. Also records the parameters' versions.
  void bind(std::span<std::byte* const> segments);
  void unbind();

  // Returns the first parameter whose version has changed since bind or forget_changes.
  std::optional<int> first_changed() const;
  bool has_changed(int parameter) const;
  void forget_changes();

  // Returns the first parameter whose storage was replaced (set_data, torch::load).
  std::optional<int> first_replaced() const;
  // Copies the values of parameters with replaced storage into the bound memory. Then makes these
  // parameters views of their own storages again. Errors: StateError if the user has changed a
  // shape or type.
  void adopt_replaced();

  // Sets the `.grad` of every trainable parameter to a guard ([Note: guarded gradients]). Errors:
  // StateError if the user has set a parameter's `.grad`.
  void guard_gradients();
  // Returns kThere if all guards of guard_gradients() are still set, kGone if none is, and
  // otherwise kSomeGone.
  enum class Guards : uint8_t { kThere, kSomeGone, kGone };
  Guards guards() const;

  // Sets the message that an access to a parameter throws from now on. In the message `reason`
  // follows the parameter's name. Also removes the guards of gradients and ends the reports to the
  // owner.
  void set_reason(std::string_view reason, std::string_view hint);

 private:
  // Makes the parameter a view of its own storage.
  void adopt(int parameter) const;
  std::string name(int parameter) const;

  const ShardLayout& layout_;
  std::string unit_;
  std::vector<at::Tensor> tensors_;
  std::vector<torch_compat::BoundStorage> storages_;
  std::vector<at::Tensor> guards_;  // by parameter; undefined if none was needed so far
  std::vector<int64_t> versions_;   // by parameter, at the last bind or forget_changes
};

}  // namespace fsdp

// Visits and replaces the tensors in an argument or a result of an operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

namespace fsdp {

// Calls `see` with each defined tensor of `value`, which may be a tensor or a list of tensors.
template <class See>
void for_tensors(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& each : value.toTensorVector()) see(each);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      if (each && each->defined()) see(*each);
    }
  }
}

// Returns a copy of `value` in which `change` has replaced each tensor, also undefined ones.
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    std::vector<at::Tensor> changed;
    for (const at::Tensor& each : value.toTensorVector()) changed.push_back(change(each));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor> each : value.toOptionalTensorList()) {
      changed.push_back(each ? std::optional(change(*each)) : std::nullopt);
    }
    return changed;
  }
  return value;
}

}  // namespace fsdp

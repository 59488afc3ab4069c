#include "planner/time/operator_key.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "meta/value_tensors.h"

namespace fsdp {
namespace {

void append_tensor(fmt::memory_buffer& key, const at::Tensor& tensor) {
  fmt::format_to(std::back_inserter(key), " {}[{}", c10::toString(tensor.scalar_type()),
                 fmt::join(tensor.sizes(), ","));
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) {
    fmt::format_to(std::back_inserter(key), ";{}", fmt::join(tensor.strides(), ","));
  }
  key.push_back(']');
}

void append_value(fmt::memory_buffer& key, const c10::IValue& value) {
  const auto out = std::back_inserter(key);
  if (value.isTensor() || value.isTensorList() || value.isOptionalTensorList()) {
    for_tensors(value, [&](const at::Tensor& tensor) { append_tensor(key, tensor); });
  } else if (value.isInt()) {
    fmt::format_to(out, " {}", value.toInt());
  } else if (value.isBool()) {
    fmt::format_to(out, " {}", value.toBool());
  } else if (value.isIntList()) {
    fmt::format_to(out, " [{}]", fmt::join(value.toIntVector(), ","));
  } else if (value.isBoolList()) {
    for (const bool each : value.toBoolList()) fmt::format_to(out, " {}", each);
  } else if (value.isString()) {
    fmt::format_to(out, " {}", value.toStringRef());
  } else if (value.isNone()) {
    fmt::format_to(out, " -");
  }
}

}  // namespace

bool records_graph(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!at::GradMode::is_enabled()) return false;
  bool requires_grad = false;
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    for_tensors(value, [&](const at::Tensor& tensor) {
      requires_grad = requires_grad || tensor.requires_grad();
    });
  }
  return requires_grad;
}

std::string operator_key(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  fmt::memory_buffer key;
  const c10::OperatorName& name = op.operator_name();
  fmt::format_to(std::back_inserter(key), "{}{}{}(", name.name,
                 name.overload_name.empty() ? "" : ".", name.overload_name);
  const size_t begin = key.size();
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    append_value(key, value);
  }
  std::string text = fmt::to_string(key);
  if (text.size() > begin) text.erase(begin, 1);  // the first space
  return text + (records_graph(op, stack) ? ") grad" : ")");
}

}  // namespace fsdp

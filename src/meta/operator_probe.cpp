#include "meta/operator_probe.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "fsdp/program_text.h"
#include "libtorch/torch_memory.h"
#include "meta/meta_kernels.h"
#include "meta/value_tensors.h"

namespace fsdp {
namespace {

thread_local OperatorProbes* probes_of_thread = nullptr;

// A map from the meta tensors of one call to their copies on the CPU, and back.
class HostCopies {
 public:
  // Returns zeros with the tensor's shape and strides. The same tensor always gets the same copy,
  // so aliases among the arguments stay aliases.
  at::Tensor copy(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_meta()) return tensor;
    const auto [entry, is_new] = copies_.try_emplace(tensor.unsafeGetTensorImpl());
    if (is_new) {
      entry->second = {
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU))
              .zero_(),
          tensor};
    }
    return entry->second.host;
  }

  // If the operator returned the copy of an argument (in place, out), returns that argument. For
  // any other result returns a meta tensor with the properties of the result.
  at::Tensor give_back(const at::Tensor& result) const {
    if (!result.defined()) return result;
    for (const auto& [impl, pair] : copies_) {
      if (!pair.host.is_same(result)) continue;
      const bool alike =
          pair.given.sizes() == result.sizes() && pair.given.strides() == result.strides();
      if (!alike)
        pair.given.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
      return pair.given;
    }
    // A result may be a view of a larger storage. For example, a mean may be in the memory of the
    // losses. The whole storage counts.
    const auto numel = static_cast<int64_t>(result.storage().nbytes() / result.itemsize());
    return at::empty({numel}, result.options().device(at::kMeta))
        .as_strided(result.sizes(), result.strides(), result.storage_offset());
  }

 private:
  struct Pair {
    at::Tensor host, given;
  };
  std::unordered_map<const c10::TensorImpl*, Pair> copies_;
};

int64_t bytes_without_memory(const c10::IValue& value) {
  int64_t bytes = 0;
  for_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.is_meta()) bytes += static_cast<int64_t>(tensor.nbytes());
  });
  return bytes;
}

void require_shapes_alone(const c10::OperatorHandle& op) {
  const std::string name = c10::toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(probes_of_thread != nullptr, name,
                              " has no kernel for tensors without memory (Meta)");
  const bool asks_values =
      op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  TORCH_CHECK_NOT_IMPLEMENTED(!asks_values, name, " reads values, but a plan has only shapes");
}

void run_on_zeros(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  require_shapes_alone(op);
  const size_t count = op.schema().arguments().size();
  const std::string name = c10::toString(op.operator_name());
  int64_t bytes = 0;
  for (const c10::IValue& argument : torch::jit::last(*stack, count)) {
    bytes += bytes_without_memory(argument);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(bytes <= kLargestProbe, name,
                              " has no kernel for tensors without memory, and its arguments of ",
                              format_bytes(bytes), " exceed the ", format_bytes(kLargestProbe),
                              " that a plan may fill with zeros to run it");
  HostCopies copies;
  torch::jit::Stack results;  // first the arguments; the call replaces them
  // The meter counts only the operator's own memory, not the copies of its arguments, because a
  // real run has no copies.
  const auto meter = std::make_shared<MemoryMeter>();
  int64_t given = 0;
  {
    const torch_memory::MeterScope counted(meter);
    for (const c10::IValue& argument : torch::jit::last(*stack, count)) {
      results.push_back(
          with_tensors(argument, [&](const at::Tensor& t) { return copies.copy(t); }));
    }
    given = meter->reading().now.torch;
    op.callBoxed(results);
  }
  // The operator's peak on the CPU is also counted by the meter of the planned run, before the
  // results are allocated as meta tensors.
  meta::scratch_bytes(meter->reading().peaks.torch - given);
  torch::jit::drop(*stack, count);
  for (const c10::IValue& result : results) {
    stack->push_back(
        with_tensors(result, [&](const at::Tensor& t) { return copies.give_back(t); }));
  }
  OperatorProbes::note(name);
}

// Returns true for an operator that has a CPU kernel but cannot run on meta. It has no meta kernel
// and is not composed of other operators.
bool needs_probe(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

}  // namespace

void add_operator_probes() {
  // There is one torch::Library for each namespace ("aten", "torchvision").
  static auto* const libraries = new std::map<std::string, torch::Library>;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !needs_probe(*op)) continue;
    const std::string space = name.name.substr(0, name.name.find("::"));
    auto found = libraries->find(space);
    if (found == libraries->end()) {
      found = libraries
                  ->emplace(std::piecewise_construct, std::forward_as_tuple(space),
                            std::forward_as_tuple(torch::Library::IMPL, space,
                                                  c10::DispatchKey::Meta, __FILE__, __LINE__))
                  .first;
    }
    const std::string in_space = c10::toString(name).substr(space.size() + 2);
    found->second.impl(in_space.c_str(),
                       torch::CppFunction::makeFromBoxedFunction<&run_on_zeros>());
  }
}

OperatorProbes::OperatorProbes() : before_(std::exchange(probes_of_thread, this)) {}
OperatorProbes::~OperatorProbes() { probes_of_thread = before_; }

void OperatorProbes::note(const std::string& name) {
  std::vector<std::string>& run = probes_of_thread->run_;
  if (std::find(run.begin(), run.end(), name) == run.end()) run.push_back(name);
}

}  // namespace fsdp

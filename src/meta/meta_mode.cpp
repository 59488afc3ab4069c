#include "meta/meta_mode.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>

#include "libtorch/torch_compat.h"
#include "libtorch/torch_memory.h"
#include "meta/meta_kernels.h"
#include "meta/value_tensors.h"

namespace fsdp {
namespace {

// Neither LibTorch nor [Note: a default device] in default_device.cpp uses this key.
constexpr c10::DispatchKey kModeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// The settings of MetaMode and MetaMode::Guard in one thread.
struct PlanningThread {
  bool plans = false;
  bool cpu_is_planned = false;
  bool guards = false;
  OperatorWatch* watch = nullptr;
};
thread_local PlanningThread planning;

// Returns true for a host tensor that must be replaced by a meta tensor. A host tensor with no
// dimensions is not replaced, because LibTorch accepts it on every device.
bool lies_on_host(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() > 0 && !tensor.requires_grad() &&
         tensor.layout() == at::kStrided;
}

// Returns a meta tensor with the properties of `tensor`. It is not counted, because the memory of
// the host tensor is counted already.
at::Tensor without_memory(const at::Tensor& tensor) {
  if (!lies_on_host(tensor)) return tensor;
  const torch_memory::MeterScope uncounted(nullptr);
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Changes the arguments of an operator if one of them is a meta tensor. An argument that the
// operator writes is not replaced, because the caller reads the result from it.
void meet(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const size_t count = schema.arguments().size();
  bool any_planned = false, any_on_host = false;
  for (const c10::IValue& argument : torch::jit::last(stack, count)) {
    for_tensors(argument, [&](const at::Tensor& tensor) {
      any_planned = any_planned || tensor.is_meta();
      any_on_host = any_on_host || lies_on_host(tensor);
    });
  }
  if (!any_planned) return;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& argument = torch::jit::peek(stack, i, count);
    if (any_on_host && !is_write(schema.arguments()[i]))
      argument = with_tensors(argument, without_memory);
    if (planning.cpu_is_planned && argument.isDevice() && argument.toDevice().is_cpu()) {
      argument = c10::Device(c10::kMeta);
    }
  }
}

bool takes_tensors(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& value) {
    return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
  });
}

void guard(const c10::IValue& made) {
  if (!made.isTensor() || !made.toTensor().is_meta()) return;
  torch_compat::forbid_access(made.toTensor(),
                              "fsdp: the host reads a tensor's memory (data_ptr, accessor) while "
                              "its model is planned, but planned tensors have none; hint: create "
                              "the tensors that the host reads or writes on torch::kCPU");
}

// Handles every operator that reaches the mode's key: adapts the arguments and then calls the
// operator below the key. The key is excluded during this call, so that calls inside the operator
// are not changed.
void call_planned(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inside(kModeKey);
  // `is_factory` is computed before the operator runs, because the call replaces the arguments on
  // the stack by the results.
  const bool is_factory = planning.guards && !takes_tensors(op, *stack);
  if (planning.plans) meet(op.schema(), *stack);
  keys = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kModeKey);
  if (planning.watch) planning.watch->before(op, *stack);
  op.redispatchBoxed(keys, stack);
  if (planning.watch) planning.watch->after(op, *stack);
  if (is_factory && !stack->empty()) guard(stack->back());
}

// Registers the fallback once. The registration is never freed, for the reason given in
// add_meta_kernels().
void register_mode() {
  static const auto* const volatile library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "_", kModeKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFromBoxedFunction<&call_planned>());
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace

MetaMode::MetaMode(bool cpu_is_planned, OperatorWatch* watch)
    : factories_((register_mode(), add_meta_kernels(), at::Device(at::kMeta))), key_(kModeKey) {
  planning = {.plans = true, .cpu_is_planned = cpu_is_planned, .watch = watch};
}

MetaMode::~MetaMode() { planning = {}; }

MetaMode::Guard::Guard() { planning.guards = true; }
MetaMode::Guard::~Guard() { planning.guards = false; }

}  // namespace fsdp

#include "engine/default_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>

namespace fsdp {
namespace {

// [Note: a default device] LibTorch in C++ has none. But a thread may include a dispatch key in all
// calls of operators that it makes; ours is DeferredInit, which is there for libraries that look at
// how modules are constructed and is nobody's in LibTorch. Its kernel, one for all operators, fills
// in the device where an operator that takes no tensor has an argument for one and got none. What
// an operator calls inside itself is LibTorch's business and left alone.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

// Threads that LibTorch lends the key to (at::parallel_for) have none.
thread_local std::optional<at::Device> device_of_thread;

bool is_tensor(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

// torch::empty, which hides autograd from the at::empty inside, as all factories of torch:: do.
bool in_torch_factory() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}

bool makes_host_memory(std::string_view name) {
  return name == "aten::from_file" || (name == "aten::empty" && !in_torch_factory());
}

void fill_in_device(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto place = schema.argumentIndexWithName("device");
  if (!place || makes_host_memory(schema.name())) return;
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  const auto given = [&](const char* name) {
    const auto at = schema.argumentIndexWithName(name);
    return at && !arguments[*at].isNone() && !(arguments[*at].isBool() && !arguments[*at].toBool());
  };
  if (given("device") || given("generator") || given("pin_memory")) return;
  if (std::any_of(arguments.begin(), arguments.end(), is_tensor)) return;
  torch::jit::peek(stack, *place, schema.arguments().size()) = *device_of_thread;
}

void make_on_default_device(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  if (device_of_thread) {
    if (op.schema().name() == "aten::cudnn_is_acceptable") {
      torch::jit::drop(*stack, 1);
      torch::jit::push(*stack, false);
      return;
    }
    fill_in_device(op.schema(), *stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

// At the first use: programs that compute on the CPU do without.
void register_kernel() {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&make_on_default_device>());
    return made;
  }();
}

}  // namespace

DefaultDevice::DefaultDevice(at::Device device) : before_(device_of_thread) {
  if (device.is_cpu()) return;
  register_kernel();
  device_of_thread = device;
  key_.emplace(kKey);
}

DefaultDevice::~DefaultDevice() {
  if (key_) device_of_thread = before_;
}

}  // namespace fsdp

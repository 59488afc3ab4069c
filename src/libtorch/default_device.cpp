#include "libtorch/default_device.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <string_view>

#include "libtorch/touch_trap.h"

namespace fsdp {
namespace {

// [Note: a default device] LibTorch has no default device in C++. But a thread may include a
// dispatch key in all operators that it calls. The key used here is that of [Note: the trap] in
// touch_trap.h, so the trap's fallback runs before each operator. If the operator accepts no tensor
// and its device argument is unset, the fallback sets this argument. The fallback runs once per
// call; operators that LibTorch calls inside are not changed.

// The device of the innermost DefaultDevice of this thread. Unset in threads to which LibTorch has
// only passed the key (at::parallel_for).
thread_local std::optional<at::Device> device_of_thread;

bool is_tensor(const c10::IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

// Returns true if the operator runs inside a factory of torch::, such as torch::empty. Such a
// factory excludes autograd's keys while it calls the factory of at::.
bool in_torch_factory() {
  return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}

// Returns true if the host fills the memory that the operator makes. aten::from_file maps a file,
// and at::tensor writes into the result of at::empty.
bool makes_host_memory(std::string_view name) {
  return name == "aten::from_file" || (name == "aten::empty" && !in_torch_factory());
}

void fill_in_device(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto place = schema.argumentIndexWithName("device");
  if (!place || makes_host_memory(schema.name())) return;
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  // An argument is unset if it is None or a false flag.
  const auto given = [&](const char* name) {
    const auto at = schema.argumentIndexWithName(name);
    return at && !arguments[*at].isNone() && !(arguments[*at].isBool() && !arguments[*at].toBool());
  };
  if (given("device") || given("generator") || given("pin_memory")) return;
  if (std::any_of(arguments.begin(), arguments.end(), is_tensor)) return;
  torch::jit::peek(stack, *place, schema.arguments().size()) = *device_of_thread;
}

bool make_on_default_device(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  // RNN modules call aten::cudnn_is_acceptable when they are constructed. If the result is true,
  // cuDNN moves the parameters of the module into one storage, which cannot be sharded. So the
  // result is set to false.
  if (schema.name() == "aten::cudnn_is_acceptable") {
    torch::jit::drop(stack, 1);
    torch::jit::push(stack, false);
    return true;
  }
  fill_in_device(schema, stack);
  return false;
}

}  // namespace

DefaultDevice::DefaultDevice(at::Device device) : before_(device_of_thread) {
  if (device.is_cpu()) return;
  touch_trap::set_of_thread(&make_on_default_device);
  device_of_thread = device;
  key_.emplace(touch_trap::key());
}

DefaultDevice::~DefaultDevice() {
  if (!key_) return;
  device_of_thread = before_;
  // Only the destructor of the outermost scope of the thread removes make_on_default_device from
  // the trap.
  if (!before_) touch_trap::set_of_thread(nullptr);
}

}  // namespace fsdp

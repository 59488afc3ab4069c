#include "simulator/torch/torch_operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <memory>
#include <string_view>
#include <vector>

#include "simulator/cuda/host_work.h"
#include "simulator/torch/simulated_device.h"

namespace fsdp::testing {
namespace {

// Adds the range from the tensor's first element to its last element.
void add(const at::Tensor& tensor, bool writes, std::vector<TouchedBytes>& touched) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  const void* data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
  if (data == nullptr) return;  // unbound: the operator makes a view or reads the version
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const int64_t offset = tensor.storage_offset() * tensor.element_size();
  touched.push_back({static_cast<const std::byte*>(data) + offset,
                     (last + 1) * static_cast<int64_t>(tensor.element_size()), writes});
}

void add(const c10::IValue& value, bool writes, std::vector<TouchedBytes>& touched) {
  if (value.isTensor()) return add(value.toTensor(), writes, touched);
  if (!value.isTensorList() && !value.isOptionalTensorList()) return;
  for (const c10::IValue& each : value.toListRef()) {
    if (each.isTensor()) add(each.toTensor(), writes, touched);
  }
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::vector<TouchedBytes> inputs_of(const at::RecordFunction& call) {
  std::vector<TouchedBytes> touched;
  const auto schema = call.operator_schema();
  for (size_t i = 0; i < call.inputs().size(); ++i) {
    const bool known = schema && i < schema->arguments().size();
    add(call.inputs()[i], known && writes(schema->arguments()[i]), touched);
  }
  return touched;
}

// Returns the ranges of the operator's new results. Inputs and views of inputs are not included.
std::vector<TouchedBytes> outputs_of(const at::RecordFunction& call) {
  std::vector<TouchedBytes> touched;
  const auto schema = call.operator_schema();
  if (!schema) return touched;
  for (size_t i = 0; i < call.outputs().size() && i < schema->returns().size(); ++i) {
    if (schema->returns()[i].alias_info() == nullptr) add(call.outputs()[i], true, touched);
  }
  return touched;
}

struct Work final : at::ObserverContext {
  Work(cudaStream_t stream, std::string_view name, const std::vector<TouchedBytes>& touched)
      : work(stream, name, touched) {}
  sim::HostWork work;
};

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  const auto* compute = ComputeStreamOfThread::current();
  if (compute == nullptr) return nullptr;
  const std::string_view name = call.name();
  // item() copies a value to the host, so the host waits for the stream.
  if (name == "aten::_local_scalar_dense") cudaStreamSynchronize(compute->handle());
  return std::make_unique<Work>(compute->handle(), name, inputs_of(call));
}

void end(const at::RecordFunction& call, at::ObserverContext* context) {
  if (context == nullptr) return;
  // The results count as separate work, which follows the work of the operators that this operator
  // calls.
  const sim::HostWork made(ComputeStreamOfThread::current()->handle(), call.name(),
                           outputs_of(call));
}

}  // namespace

TorchOperatorsOfThread::TorchOperatorsOfThread()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

TorchOperatorsOfThread::~TorchOperatorsOfThread() { at::removeCallback(handle_); }

}  // namespace fsdp::testing

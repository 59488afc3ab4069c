// LibTorch's operators are work of the compute stream: tells a rank's race check what those of this
// thread read, and what those that end in '_' write.
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <vector>

#include "support/sim/checked_device.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

class OperatorReads {
 public:
  explicit OperatorReads(const CheckedDevice& device)
      : handle_(
            at::addThreadLocalCallback(at::RecordFunctionCallback(begin).needsInputs(true).scopes(
                {at::RecordScope::FUNCTION}))) {
    device_of_thread() = &device;
  }
  ~OperatorReads() { at::removeCallback(handle_); }
  OperatorReads(const OperatorReads&) = delete;
  OperatorReads& operator=(const OperatorReads&) = delete;

 private:
  static const CheckedDevice*& device_of_thread() {
    static thread_local const CheckedDevice* device = nullptr;
    return device;
  }

  static void add(const at::Tensor& tensor, bool writes, std::vector<TouchedBytes>& bytes) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
    const void* data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (data == nullptr) return;  // not seated: a view of it is made, or its version looked at
    const int64_t offset = tensor.storage_offset() * tensor.element_size();
    bytes.push_back({static_cast<const std::byte*>(data) + offset,
                     static_cast<int64_t>(tensor.nbytes()), writes});
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
    const std::string_view name = call.name();
    std::vector<TouchedBytes> bytes;
    for (size_t i = 0; i < call.inputs().size(); ++i) {
      const c10::IValue& input = call.inputs()[i];
      const bool writes = i == 0 && name.ends_with("_");
      if (input.isTensor()) add(input.toTensor(), writes, bytes);
      if (!input.isTensorList()) continue;
      for (const at::Tensor& each : input.toTensorVector()) add(each, writes, bytes);
    }
    if (!bytes.empty()) touch(device_of_thread()->compute_stream(), name, bytes);
    return nullptr;
  }

  const at::CallbackHandle handle_;
};

}  // namespace fsdp::testing

// Treats LibTorch's operators as work of the compute stream. It opens guarded memory for them, and
// reports the bytes of their inputs to the race check of the thread's device. These bytes count as
// read. If an operator's name ends in '_', the bytes of its first input count as written.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "simulator/checked_device.h"
#include "simulator/guarded_memory.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

class OperatorWork {
 public:
  explicit OperatorWork(const CheckedDevice& device) {
    // The callback is installed for all threads and never removed, because tensors may outlive the
    // ranks.
    static const at::CallbackHandle handle =
        at::addGlobalCallback(at::RecordFunctionCallback(begin, end)
                                  .needsInputs(true)
                                  .scopes({at::RecordScope::FUNCTION}));
    static_cast<void>(handle);
    device_of_thread() = &device;
  }
  ~OperatorWork() { device_of_thread() = nullptr; }
  OperatorWork(const OperatorWork&) = delete;
  OperatorWork& operator=(const OperatorWork&) = delete;

 private:
  static const CheckedDevice*& device_of_thread() {
    static thread_local const CheckedDevice* device = nullptr;
    return device;
  }

  static void add(const at::Tensor& tensor, bool writes, std::vector<TouchedBytes>& bytes) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
    const void* data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (data == nullptr) return;  // unbound: the operator makes a view or reads the version
    const int64_t offset = tensor.storage_offset() * tensor.element_size();
    // An expanded tensor has fewer elements in memory than numel().
    const size_t extent =
        at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
    bytes.push_back({static_cast<const std::byte*>(data) + offset,
                     static_cast<int64_t>(std::min(tensor.nbytes(), extent)), writes});
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
    const CheckedDevice* device = device_of_thread();
    if (device != nullptr && !bytes.empty()) device->tell(name, bytes);
    GuardedMemory::instance().open();
    return nullptr;
  }
  static void end(const at::RecordFunction& /*call*/, at::ObserverContext* /*context*/) {
    GuardedMemory::instance().close();
  }
};

}  // namespace fsdp::testing

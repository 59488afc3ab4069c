// All uses of private and version-dependent functions of LibTorch's tensors. They are verified on
// LibTorch 2.11 to 2.15. tests/libtorch/torch_compat_test.cpp tests each behaviour that this code
// relies on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "libtorch/touch_trap.h"
#include "runtime/dtype.h"

namespace fsdp::torch_compat {

// A reference to a node of autograd's graph, in the type that LibTorch returns: a shared_ptr up to
// 2.14, and c10's intrusive_ptr from 2.15 on.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// Returns "bfloat16", for example. For a type that the engine does not support, returns LibTorch's
// name: "ComplexFloat".
std::string type_name(at::ScalarType type);

// [Note: binding storage]
// A parameter has the same StorageImpl for its whole life: once, the parameter's data is replaced
// by a view of this storage. Binding points the storage at memory of the engine, which takes 0.01
// µs. Unbinding points it at null and sets a flag of LibTorch that makes every access throw a
// message. Views saved by autograd share the StorageImpl, so they are bound and unbound too. nbytes
// is never changed, so the sizes and strides of views, and LibTorch's own range checks, remain
// valid. The flag is necessary. With a null pointer alone, element-wise operators crash. With sizes
// of zero, many operators silently read nothing.
class BoundStorage {
 public:
  // Makes an unbound storage. An access throws `message`. If `watch` has an owner, the trap reports
  // operators on a tensor that adopted the storage, and on a watched view (touch_trap.h).
  BoundStorage(int64_t bytes, at::Device device, std::string message,
               const touch_trap::Watch& watch = {});

  void bind(void* data);
  void unbind();
  // Unbinds the storage and sets the message that an access throws. Accesses through views that
  // users or autograd still hold throw the message, too.
  void set_message(std::string message);
  // Removes the owner of the storage, so that the trap no longer reports operators on it.
  void forget_owner();

  // Returns a tensor over the storage. Strides and offset are in elements of `dtype`.
  at::Tensor view(DType dtype, int64_t offset, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides) const;
  // Replaces the data of `parameter` by a view of the storage. The parameter keeps its TensorImpl.
  // If the storage has an owner, operators on the parameter are reported from now on.
  void adopt(at::Tensor parameter, DType dtype, std::span<const int64_t> sizes,
             std::span<const int64_t> strides) const;
  bool owns(const at::Tensor& tensor) const;

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  touch_trap::WatchedStorage* watched_ = nullptr;  // storage_ if it has an owner, else null
  at::Device device_;
};

// Increments the tensor's version. A graph that saved the tensor then throws in backward.
void bump_version(const at::Tensor& tensor);
int64_t version(const at::Tensor& tensor);
// Sets the version back. Requires: the tensor has the same value as it had at that version.
void set_version(const at::Tensor& tensor, int64_t version);

// Make every access to the tensor's memory throw `message`, and undo this. Used for tensors without
// memory, because an operator would otherwise read a null pointer.
void forbid_access(const at::Tensor& tensor, std::string message);
void allow_access(const at::Tensor& tensor);

// Returns a contiguous 1-d tensor over memory that it does not own. `owner` stays alive as long as
// the tensor or any tensor that shares its storage.
at::Tensor wrap(void* data, int64_t numel, DType dtype, at::Device device,
                std::shared_ptr<const void> owner = nullptr);
// Wraps float32 memory as wrap does, in a storage that the trap watches. The returned tensor itself
// does not have the trap's key.
at::Tensor wrap_watched(void* data, int64_t numel, at::Device device,
                        const touch_trap::Watch& watch, std::shared_ptr<const void> owner);
// Returns a float32 tensor over the storage. For autograd it is not a view, and it has its own
// version counter.
at::Tensor view_of(const c10::Storage& storage, int64_t offset, int64_t numel, at::Device device);

}  // namespace fsdp::torch_compat

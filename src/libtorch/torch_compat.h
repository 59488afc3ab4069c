// Private and version-dependent parts of LibTorch's tensors, all in one place, verified on LibTorch
// 2.11 to 2.15. tests/libtorch/torch_compat_test.cpp proves each fact that is relied on here.
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

// A reference to a node of autograd's graph, as LibTorch returns it: a shared_ptr up to 2.14, c10's
// intrusive_ptr from 2.15 on.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// Returns "bfloat16"; for a type that the engine does not support LibTorch's name: "ComplexFloat".
std::string type_name(at::ScalarType type);

// [Note: binding storage]
// One StorageImpl serves a parameter for life: the parameter is made a view of it once. Binding
// points the storage at memory of the engine (0.01 µs). Unbinding points it at null and arms a flag
// in LibTorch that makes every access throw a message. Views saved by autograd share the
// StorageImpl, so they follow. nbytes stays full: sizes and strides of the views stay valid, and
// LibTorch's own range checks, too. The flag is needed: with a null pointer alone, element-wise
// operators crash; with sizes of zero, many read nothing in silence.
class BoundStorage {
 public:
  // Makes an unbound storage; an access throws `message`. With an owner in `watch`, the trap
  // reports operators on a tensor that adopted the storage, or on a view that is watched
  // (touch_trap.h).
  BoundStorage(int64_t bytes, at::Device device, std::string message,
               const touch_trap::Watch& watch = {});

  void bind(void* data);
  void unbind();
  // Unbinds the storage and sets the message that an access throws, also through views that users
  // or autograd still hold.
  void set_message(std::string message);
  // Removes the owner: operators are not reported any more.
  void forget_owner();

  // Returns a tensor over the storage; strides and offset are in elements of `dtype`.
  at::Tensor view(DType dtype, int64_t offset, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides) const;
  // Makes such a view the data of `parameter`, which keeps its TensorImpl. With an owner, operators
  // on it are reported from now on.
  void adopt(at::Tensor parameter, DType dtype, std::span<const int64_t> sizes,
             std::span<const int64_t> strides) const;
  bool owns(const at::Tensor& tensor) const;

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  touch_trap::WatchedStorage* watched_ = nullptr;  // storage_, where it has an owner
  at::Device device_;
};

// Marks a tensor as changed: a graph that saved it throws in backward.
void bump_version(const at::Tensor& tensor);
int64_t version(const at::Tensor& tensor);
// Sets the version back. Requires: the tensor has the value again that it had at that version.
void set_version(const at::Tensor& tensor, int64_t version);

// Make every access to the tensor's memory throw `message`, and undo that. For tensors without
// memory, whose null pointer would be read.
void forbid_access(const at::Tensor& tensor, std::string message);
void allow_access(const at::Tensor& tensor);

// Returns a contiguous tensor of one dimension over memory that it does not own. The tensor, and
// each that shares its storage, keeps `owner` alive.
at::Tensor wrap(void* data, int64_t numel, DType dtype, at::Device device,
                std::shared_ptr<const void> owner = nullptr);
// Does the same for float32, in a storage that the trap knows. The tensor itself does not have the
// key.
at::Tensor wrap_watched(void* data, int64_t numel, at::Device device,
                        const touch_trap::Watch& watch, std::shared_ptr<const void> owner);
// Returns a float32 tensor over the storage. For autograd it is no view; it has a version
// counter of its own.
at::Tensor view_of(const c10::Storage& storage, int64_t offset, int64_t numel, at::Device device);

}  // namespace fsdp::torch_compat

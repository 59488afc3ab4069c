// Everything private or version-dependent of LibTorch's tensors (verified on 2.11 to 2.15) in
// one place.
// tests/libtorch/torch_compat_test.cpp proves each fact that is relied on here.
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

// What holds a node of autograd's graph, as LibTorch hands it out: a shared_ptr up to 2.14, c10's
// intrusive_ptr from 2.15 on.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

// "bfloat16"; of types that the engine does not move LibTorch's name: "ComplexFloat".
std::string type_name(at::ScalarType type);

// [Note: binding storage]
// One StorageImpl serves a parameter for life; it is a view of it, bound once. Seating
// points the storage at memory of ours (0.01 µs); unseating points it at nothing and arms a flag in
// LibTorch that makes every access throw a message. Views saved by autograd share the StorageImpl,
// so they follow. nbytes stays full: sizes and strides of the views stay valid, and LibTorch's own
// range checks too. The flag matters: with a null pointer alone, element-wise operators crash, and
// with sizes of zero many read nothing in silence.
class BoundStorage {
 public:
  // Unseated. `message` is what an access throws then. With an owner in `watch`, the trap is told
  // of operators that are given a tensor which was bound, or a view that it watches (touch_trap.h).
  BoundStorage(int64_t bytes, at::Device device, std::string message,
               const touch_trap::Watch& watch = {});

  void bind(void* data);
  void unbind();
  // Also changes what views that users or autograd still hold will say.
  void set_message(std::string message);
  // From now on operators pass.
  void forget_owner();

  // A tensor over the storage; numel, strides and offset in elements of `dtype`.
  at::Tensor view(DType dtype, int64_t offset, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides) const;
  // Gives `parameter` such a view as its data; it keeps its TensorImpl. With an owner, operators
  // that are given it are seen from now on.
  void adopt(at::Tensor parameter, DType dtype, std::span<const int64_t> sizes,
             std::span<const int64_t> strides) const;
  bool owns(const at::Tensor& tensor) const;

 private:
  c10::intrusive_ptr<c10::StorageImpl> storage_;
  touch_trap::WatchedStorage* watched_ = nullptr;  // storage_, where it has an owner
  at::Device device_;
};

// Marks a tensor as changed, so that a graph that saved it throws in backward.
void bump_version(const at::Tensor& tensor);
int64_t version(const at::Tensor& tensor);
// Requires: the tensor's value is again what it was at that version.
void set_version(const at::Tensor& tensor, int64_t version);

// Makes every access to the tensor's memory throw `message`, or as it was before. For what has
// none: its null would be read.
void forbid_access(const at::Tensor& tensor, std::string message);
void allow_access(const at::Tensor& tensor);

// A tensor over memory that somebody else owns; contiguous, one-dimensional. It, and whatever
// shares its storage, keeps `owner` alive.
at::Tensor wrap(void* data, int64_t numel, DType dtype, at::Device device,
                std::shared_ptr<const void> owner = nullptr);
// The same of float32 in a storage that the trap knows; the tensor itself has no key.
at::Tensor wrap_watched(void* data, int64_t numel, at::Device device,
                        const touch_trap::Watch& watch, std::shared_ptr<const void> owner);
// float32, for autograd no view, with a version counter of its own.
at::Tensor view_of(const c10::Storage& storage, int64_t offset, int64_t numel, at::Device device);

}  // namespace fsdp::torch_compat

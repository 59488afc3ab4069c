#include "libtorch/torch_compat.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>

#include <array>

namespace fsdp::torch_compat {
namespace {

// LibTorch has a public function that sets throw_on_immutable_data_ptr_, but none that clears this
// flag. An explicit instantiation may name a private member, so this is a legal way to access the
// flag. If LibTorch renames the member, this code fails to compile; it cannot silently misbehave.
template <auto Member>
struct Expose {
  friend constexpr auto throw_flag() { return Member; }
};
constexpr auto throw_flag();
template struct Expose<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

c10::DispatchKeySet keys_of(at::Device device) {
  if (device.is_meta()) return c10::DispatchKeySet(c10::DispatchKey::Meta);
  return c10::DispatchKeySet(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
}

}  // namespace

static_assert(scalar_type_of(DType::kFloat32) == at::kFloat);
static_assert(scalar_type_of(DType::kBFloat16) == at::kBFloat16);
static_assert(scalar_type_of(DType::kFloat16) == at::kHalf);
static_assert(scalar_type_of(DType::kFloat64) == at::kDouble);
static_assert(scalar_type_of(DType::kInt64) == at::kLong);
static_assert(scalar_type_of(DType::kInt32) == at::kInt);
static_assert(scalar_type_of(DType::kUInt8) == at::kByte);

std::string type_name(at::ScalarType type) {
  const std::optional<DType> dtype = dtype_of(type);
  return dtype ? std::string(name_of(*dtype)) : c10::toString(type);
}

BoundStorage::BoundStorage(int64_t bytes, at::Device device, std::string message,
                           const touch_trap::Watch& watch)
    : device_(device) {
  if (watch.owner != nullptr) {
    auto watched = c10::make_intrusive<touch_trap::WatchedStorage>(
        static_cast<size_t>(bytes), at::DataPtr(nullptr, device), watch);
    watched_ = watched.get();
    storage_ = std::move(watched);
  } else {
    // The storage is not resizable, so resize_ throws. In a resizable storage, resize_ would move
    // the parameter out of the engine's memory.
    storage_ = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(bytes),
        at::DataPtr(nullptr, device), /*allocator=*/nullptr, /*resizable=*/false);
  }
  set_message(std::move(message));
}

void BoundStorage::forget_owner() {
  if (watched_ != nullptr) watched_->watch.owner = nullptr;
}

void BoundStorage::bind(void* data) {
  // The flag is cleared first, because set_data_ptr_noswap updates LibTorch's cached copy of the
  // flag.
  storage_.get()->*throw_flag() = false;
  storage_->set_data_ptr_noswap(at::DataPtr(data, device_));
}

void BoundStorage::unbind() {
  storage_.get()->*throw_flag() = true;
  storage_->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
}

void BoundStorage::set_message(std::string message) {
  // Despite its name, this call releases nothing. It stores the message and sets the flag.
  storage_->release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  unbind();
}

at::Tensor BoundStorage::view(DType dtype, int64_t offset, std::span<const int64_t> sizes,
                              std::span<const int64_t> strides) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_), keys_of(device_), c10::scalarTypeToTypeMeta(scalar_type_of(dtype)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides({sizes.data(), sizes.size()},
                                                      {strides.data(), strides.size()}, offset);
  return tensor;
}

void BoundStorage::adopt(at::Tensor parameter, DType dtype, std::span<const int64_t> sizes,
                         std::span<const int64_t> strides) const {
  // The trap must not report set_data, because it is the engine's own operator.
  const touch_trap::Unseen unseen;
  parameter.set_data(view(dtype, 0, sizes, strides));
  // The trap's dispatch key is added to the parameter last, because on some devices (meta) set_data
  // refuses a parameter with an additional key.
  if (watched_ != nullptr) touch_trap::watch(parameter);
}

bool BoundStorage::owns(const at::Tensor& tensor) const {
  return tensor.storage().unsafeGetStorageImpl() == storage_.get();
}

void bump_version(const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

int64_t version(const at::Tensor& tensor) { return static_cast<int64_t>(tensor._version()); }

void set_version(const at::Tensor& tensor, int64_t version) {
  c10::VariableVersion counter = tensor.unsafeGetTensorImpl()->version_counter();  // shares it
  counter.set_version(version);
}

void forbid_access(const at::Tensor& tensor, std::string message) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::move(message));
}

void allow_access(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->*throw_flag() = false;
  at::DataPtr own = std::move(storage->_mutable_data_ptr_no_checks());
  storage->set_data_ptr_noswap(std::move(own));  // updates LibTorch's cached copy of the flag
}

at::Tensor wrap(void* data, int64_t numel, DType dtype, at::Device device,
                std::shared_ptr<const void> owner) {
  // The device is passed and not derived from the pointer: a null pointer has no device, and
  // deriving it would cost a call.
  const auto options = at::TensorOptions().dtype(scalar_type_of(dtype)).device(device);
  const std::array<int64_t, 1> sizes{numel};
  auto maker = at::for_blob(data, sizes);
  if (owner) maker.deleter([owner = std::move(owner)](void*) {});
  return maker.options(options).target_device(device).make_tensor();
}

at::Tensor wrap_watched(void* data, int64_t numel, at::Device device,
                        const touch_trap::Watch& watch, std::shared_ptr<const void> owner) {
  // The storage holds a reference to `owner`, so the memory lives as long as any view of it.
  using Owner = std::shared_ptr<const void>;
  at::DataPtr held(
      data, new Owner(std::move(owner)), [](void* of) { delete static_cast<Owner*>(of); }, device);
  const auto bytes = static_cast<size_t>(numel * size_of(DType::kFloat32));
  const c10::Storage storage(
      c10::make_intrusive<touch_trap::WatchedStorage>(bytes, std::move(held), watch));
  return view_of(storage, 0, numel, device);
}

at::Tensor view_of(const c10::Storage& storage, int64_t offset, int64_t numel, at::Device device) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), keys_of(device), c10::scalarTypeToTypeMeta(at::kFloat));
  const std::array<int64_t, 1> sizes{numel}, strides{1};
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

}  // namespace fsdp::torch_compat

#include "shard/touch_trap.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/neg.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "fsdp/error.h"

namespace fsdp::touch_trap {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

Listener* listener = nullptr;  // set by arm, before any parameter has the key
thread_local OfThread of_thread = nullptr;

using Units = c10::SmallVector<Touched*, 4>;

Touched* owner_of(const c10::TensorImpl& tensor) {
  if (!tensor.key_set().has(kKey) || !tensor.has_storage()) return nullptr;
  // Only views of a WatchedStorage are given the key.
  return static_cast<const WatchedStorage*>(tensor.unsafe_storage().unsafeGetStorageImpl())->owner;
}

// Calls `see` with each tensor in `value`.
template <class See>
void for_each_tensor_in(const c10::IValue& value, const See& see) {
  if (value.isTensor()) {
    see(*value.unsafeToTensorImpl());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) for_each_tensor_in(each, see);
  }
}

void add_units(const c10::IValue& value, Units& units) {
  for_each_tensor_in(value, [&](const c10::TensorImpl& tensor) {
    Touched* owner = owner_of(tensor);
    if (owner != nullptr && std::ranges::find(units, owner) == units.end()) units.push_back(owner);
  });
}

Touched* first_written(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  if (!schema.is_mutable()) return nullptr;
  Units written;
  for (size_t i = 0; i < arguments.size() && written.empty(); ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) add_units(arguments[i], written);
  }
  return written.empty() ? nullptr : written[0];
}

// A call anew, not a redispatch: whoever records operators sees it begin where it does, with its
// parameters there.
void run_below(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

void trap(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (of_thread != nullptr && of_thread(schema, *stack)) return;
  Units units;
  const at::ArrayRef<c10::IValue> arguments = torch::jit::last(*stack, schema.arguments().size());
  for (const c10::IValue& argument : arguments) add_units(argument, units);
  if (units.empty()) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
                              stack);
  }
  const Touch touch{.name = schema.name(),
                    .units = {units.data(), units.size()},
                    .written = first_written(schema, arguments)};
  const bool wants_results = listener->before(touch);
  try {
    run_below(op, stack);
  } catch (c10::Error& error) {
    listener->failed(touch, error);
    throw;
  }
  if (!wants_results) return;
  c10::SmallVector<at::Tensor, 4> results;
  for (const c10::IValue& result : torch::jit::last(*stack, schema.returns().size())) {
    if (result.isTensor()) {
      results.push_back(result.toTensor());
    } else if (result.isList()) {
      for (const c10::IValue& each : result.toListRef()) {
        if (each.isTensor()) results.push_back(each.toTensor());
      }
    }
  }
  listener->after(touch, {results.data(), results.size()});
}

[[noreturn]] void refuse(std::string cause) {
  throw StateError({.what = "LibTorch's operators cannot be seen before they run, which units by "
                            "policy, and models made on a GPU or planned, need",
                    .where = {},
                    .cause = std::move(cause),
                    .hint = "make layers fsdp::Unit<Block> and build on the CPU"});
}

// A parameter whose touches are counted.
class Proof final : public Listener {
 public:
  bool before(const Touch& touch) override {
    seen_ += touch.name == "aten::neg" && touch.units.size() == 1 && touch.units[0] == &owner_;
    return true;
  }
  void after(const Touch& /*touch*/, std::span<const at::Tensor> results) override {
    returned_ += static_cast<int>(results.size());
  }
  void failed(const Touch& /*touch*/, c10::Error& /*error*/) override {}

  // What this LibTorch does otherwise; empty: nothing.
  std::string find_fault() {
    const std::string fault = fmt::format(
        "this LibTorch does not call the fallback of the dispatch key {} as it is used here",
        c10::toString(kKey));
    try {
      return holds() ? "" : fault;
    } catch (const c10::Error& error) {
      return fmt::format("{}: {}", fault, error.what_without_backtrace());
    }
  }

 private:
  class Owner final : public Touched {};

  bool holds() {
    float value = 1;
    const auto storage = c10::make_intrusive<WatchedStorage>(sizeof value, at::kCPU, &owner_);
    storage->set_data_ptr_noswap(at::DataPtr(&value, at::kCPU));
    const at::Tensor watched = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU) | key(),
        c10::scalarTypeToTypeMeta(at::kFloat));
    watched.unsafeGetTensorImpl()->set_sizes_contiguous({1});
    const at::Tensor result = at::neg(watched);
    const bool is_seen = seen_ == 1 && returned_ == 1 && !result.key_set().has(kKey);
    const Unseen unseen;
    return is_seen && at::neg(watched).const_data_ptr<float>()[0] == -1 && seen_ == 1;
  }

  Owner owner_;
  int seen_ = 0, returned_ = 0;
};

// For the rest of the process. Errors: StateError, each time, where another library was first.
void register_once() {
  static std::mutex mutex;
  static std::optional<c10::RegistrationHandleRAII> registered;
  const std::lock_guard lock(mutex);
  if (registered) return;
  try {
    registered = c10::Dispatcher::singleton().registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&trap>(), "fsdp");
  } catch (const c10::Error& error) {
    refuse(fmt::format("another library has taken the dispatch key {}: {}", c10::toString(kKey),
                       error.what_without_backtrace()));
  }
}

}  // namespace

void set_of_thread(OfThread does) {
  if (does != nullptr) register_once();
  of_thread = does;
}

void arm(Listener& engines) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (listener == &engines) return;
  register_once();
  Proof proof;
  listener = &proof;
  std::string fault = proof.find_fault();
  listener = fault.empty() ? &engines : nullptr;
  if (!fault.empty()) refuse(std::move(fault));
}

WatchedStorage::WatchedStorage(size_t bytes, at::Device device, Touched* of)
    : c10::StorageImpl(c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, device),
                       /*allocator=*/nullptr, /*resizable=*/false),
      owner(of) {}

c10::DispatchKeySet key() { return c10::DispatchKeySet(kKey); }

Touched* owner_of(const at::Tensor& tensor) {
  return tensor.defined() ? owner_of(*tensor.unsafeGetTensorImpl()) : nullptr;
}

Unseen::Unseen() : guard_(kKey) {}

}  // namespace fsdp::touch_trap

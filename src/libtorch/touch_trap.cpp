#include "libtorch/touch_trap.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/neg.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "fsdp/error.h"

namespace fsdp::touch_trap {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

Listener* listener = nullptr;  // set by arm, before any parameter has the key
thread_local OfThread of_thread = nullptr;

using Units = c10::SmallVector<Touched*, 4>;

// Returns the tensor's WatchedStorage; null if it has none. Results of operators on shards have the
// key but a storage made by LibTorch.
WatchedStorage* watched_storage(const c10::TensorImpl& tensor) {
  if (!tensor.key_set().has(kKey) || !tensor.has_storage()) return nullptr;
  c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  return typeid(*storage) == typeid(WatchedStorage) ? static_cast<WatchedStorage*>(storage)
                                                    : nullptr;
}

Touched* owner_of(const c10::TensorImpl& tensor) {
  const WatchedStorage* storage = watched_storage(tensor);
  return storage != nullptr ? storage->watch.owner : nullptr;
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

bool writes(const c10::FunctionSchema& schema, size_t argument) {
  const c10::AliasInfo* alias = schema.arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

// The watched tensors among the arguments of an operator ([Note: the trap], [Note: numbers of a
// shard]).
class Given {
 public:
  Given(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) : schema_(schema) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      for_each_tensor_in(arguments[i], [&](const c10::TensorImpl& tensor) {
        if (tensor.key_set().has(kKey)) add(tensor, writes(schema, i));
      });
      if (i == 0) first_is_cut_ = is_cut_;
    }
  }

  const Units& units() const { return units_; }
  Touched* written() const { return written_; }

  // Checks the results of an operator that received cut shards (Watch::is_cut). Throws StateError
  // if a result is a scalar or has fewer elements than the shard, because it would be computed from
  // this rank's slice only. See [Note: numbers of a shard].
  void look_at_results(at::ArrayRef<c10::IValue> results) const {
    if (!is_cut_) return;
    const std::string& name = schema_.name();
    for (size_t i = 0; i < results.size(); ++i) {
      const c10::AliasInfo* alias = schema_.returns()[i].alias_info();
      const bool is_own = alias == nullptr || !alias->isWrite();
      if (results[i].isTensor()) {
        look_at(results[i].toTensor(), is_own, /*in_list=*/false);
      } else if (results[i].isList()) {
        for (const c10::IValue& each : results[i].toListRef()) {
          if (each.isTensor()) look_at(each.toTensor(), is_own, /*in_list=*/true);
        }
      } else if (name == "aten::item" || name == "aten::_local_scalar_dense" ||
                 name == "aten::is_nonzero" || results[i].isDouble()) {
        refuse_number();
      }
    }
  }

 private:
  void add(const c10::TensorImpl& tensor, bool written) {
    const WatchedStorage* storage = watched_storage(tensor);
    // A tensor that has the key but no WatchedStorage is the result of an earlier operator on a cut
    // shard, and still has the values of that shard.
    const Watch computed{.holds = Holds::kMainShard, .is_cut = true};
    const Watch& watch = storage != nullptr ? storage->watch : computed;
    if (watch.holds == Holds::kParameters) {
      // If the storage has no owner, its engine was destroyed. The operator is not reported,
      // because its access to the storage throws the storage's own message.
      if (watch.owner == nullptr) return;
      if (std::ranges::find(units_, watch.owner) == units_.end()) units_.push_back(watch.owner);
      if (written && written_ == nullptr) written_ = watch.owner;
      return;
    }
    if (watch.owner != nullptr) {
      listener->shard({schema_.name(), watch.owner, watch.holds, written});
    }
    if (!watch.is_cut) return;
    is_cut_ = true;
    numel_ = std::max(numel_, tensor.numel());
    dim_ = std::max(dim_, tensor.dim());
    storages_.push_back(tensor.unsafe_storage().unsafeGetStorageImpl());
  }

  // Checks one result, and watches it if it has the shard's values. `is_own` is false if the result
  // is an argument that was written. In a list, each result may correspond to another argument, so
  // the size of a result is not compared with the largest argument.
  void look_at(const at::Tensor& result, bool is_own, bool in_list) const {
    if (!result.defined() || !result.has_storage()) return;
    if (std::ranges::find(storages_, result.storage().unsafeGetStorageImpl()) != storages_.end()) {
      return;
    }
    if (result.dim() == 0 ? dim_ > 0 : !in_list && result.numel() < numel_ && !picks()) {
      refuse_number();
    }
    // If a result has further references, it is a tensor that existed before the operator. Such a
    // tensor must not be changed.
    if (is_own && keeps_values() && result.use_count() == 1) watch(result);
  }

  bool picks() const { return std::ranges::find(kPicks, schema_.name()) != std::end(kPicks); }
  bool keeps_values() const {
    const std::string& name = schema_.name();
    if (name == "aten::to" || name == "aten::type_as") return first_is_cut_;
    return name != "aten::clone" && !name.ends_with("_like") && !name.starts_with("aten::new_");
  }

  [[noreturn]] void refuse_number() const {
    throw StateError(
        {.what = fmt::format(
             "'{}' computes a number from a shard; the number would differ on each rank",
             schema_.name()),
         .where = "Engine::parameters() or their `.grad`",
         .cause = "each rank holds a part of the parameters and gradients",
         .hint = "clip with Engine::clip_grad_norm instead of torch::nn::utils::clip_grad_norm_; "
                 "measure with Engine::measure_gradients, or read whole parameters inside "
                 "fsdp::Gathered; do not use optimizers that compute such numbers (LBFGS); if you "
                 "want the number of this rank's shard, compute it from a clone()"});
  }

  // Operators that return a subset of the elements unchanged.
  static constexpr std::string_view kPicks[] = {"aten::index",         "aten::index_select",
                                                "aten::gather",        "aten::take",
                                                "aten::masked_select", "aten::slice_copy"};

  const c10::FunctionSchema& schema_;
  Units units_;
  Touched* written_ = nullptr;
  bool is_cut_ = false, first_is_cut_ = false;
  int64_t numel_ = 0, dim_ = 0;  // the largest numel and dim of a cut shard
  c10::SmallVector<const c10::StorageImpl*, 4> storages_;
};

// Calls the operator again with the key excluded. This is a full call and not a redispatch, so
// profilers record the operator from here on, when its parameters are gathered.
void run_below(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  op.callBoxed(stack);
}

void trap(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  if (of_thread != nullptr && of_thread(schema, *stack)) return;
  const Given given(schema, torch::jit::last(*stack, schema.arguments().size()));
  // If the operator receives no parameter of a unit by policy, it was called with shards or in a
  // thread with a default device. Then before() and after() of the listener are not called.
  if (given.units().empty()) {
    const c10::impl::ExcludeDispatchKeyGuard below(kKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return given.look_at_results(torch::jit::last(*stack, schema.returns().size()));
  }
  const Touch touch{.name = schema.name(),
                    .units = {given.units().data(), given.units().size()},
                    .written = given.written()};
  const bool wants_results = listener->before(touch);
  try {
    run_below(op, stack);
  } catch (c10::Error& error) {
    listener->failed(touch, error);
    // The listener adds its context to the error, or throws its own error instead.
    throw;
  }
  given.look_at_results(torch::jit::last(*stack, schema.returns().size()));
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
  throw StateError({.what = "cannot intercept LibTorch's operators; Options::units, models built "
                            "on a GPU and plans need this",
                    .cause = std::move(cause),
                    .hint = "make the layers fsdp::Unit<Block>, and build the model on the CPU"});
}

// A listener that tests the trap. It has a parameter of its own and counts the operators on it.
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

  // Returns a description of the first test that fails on this LibTorch; empty if the trap works.
  std::string find_fault() {
    const std::string fault = fmt::format(
        "this LibTorch does not call the fallback of the dispatch key {} as the engine needs it",
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
    const auto storage = c10::make_intrusive<WatchedStorage>(
        sizeof value, at::DataPtr(&value, at::kCPU), Watch{.owner = &owner_});
    const at::Tensor watched = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        c10::scalarTypeToTypeMeta(at::kFloat));
    watched.unsafeGetTensorImpl()->set_sizes_contiguous({1});
    watch(watched);
    // The trap must report the operator once, with its result, and the result must not inherit the
    // key. Inside an `Unseen` scope the trap must not report the operator.
    const at::Tensor result = at::neg(watched);
    const bool is_seen = seen_ == 1 && returned_ == 1 && !result.key_set().has(kKey);
    const Unseen unseen;
    return is_seen && at::neg(watched).const_data_ptr<float>()[0] == -1 && seen_ == 1;
  }

  Owner owner_;
  int seen_ = 0, returned_ = 0;
};

// Registers the fallback for the rest of the process. Throws StateError, at each call, if another
// library has registered a fallback.
void register_once() {
  static std::mutex mutex;
  // Never destroyed, because tensors with the key may outlive static objects.
  static c10::RegistrationHandleRAII* registered = nullptr;
  const std::lock_guard lock(mutex);
  if (registered != nullptr) return;
  try {
    registered = new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
        kKey, c10::KernelFunction::makeFromBoxedFunction<&trap>(), "fsdp"));
  } catch (const c10::Error& error) {
    refuse(fmt::format("another library uses the dispatch key {}: {}", c10::toString(kKey),
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

WatchedStorage::WatchedStorage(size_t bytes, at::DataPtr data, const Watch& of)
    : c10::StorageImpl(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                       /*allocator=*/nullptr, /*resizable=*/false),
      watch(of) {}

c10::DispatchKeySet key() { return c10::DispatchKeySet(kKey); }

void watch(const at::Tensor& tensor) {
  c10::TensorImpl* const own = tensor.unsafeGetTensorImpl();
  const auto seen = c10::make_intrusive<c10::TensorImpl>(c10::Storage(own->storage()),
                                                         own->key_set() | key(), own->dtype());
  seen->set_sizes_and_strides(own->sizes(), own->strides(), own->storage_offset());
  own->shallow_copy_from(seen);  // keeps the tensor's version counter
}

void forget_owner(const at::Tensor& tensor) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (typeid(*storage) != typeid(WatchedStorage)) return;
  static_cast<WatchedStorage*>(storage)->watch.owner = nullptr;
}

Touched* owner_of(const at::Tensor& tensor) {
  return tensor.defined() ? owner_of(*tensor.unsafeGetTensorImpl()) : nullptr;
}

Unseen::Unseen() : guard_(kKey) {}

}  // namespace fsdp::touch_trap

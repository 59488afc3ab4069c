// Reports every operator that receives a parameter of a unit by policy, a main shard or its
// gradient, before the operator runs. Nothing else shows where the forward of such a unit is, or
// how a caller uses a shard. No other file knows the mechanism.
//
// [Note: the trap]
// Such tensors have one dispatch key more than others: DeferredInit, which LibTorch reserves for an
// extension. One boxed fallback of this key runs for every operator that receives one of them,
// before autograd and autocast. It finds the owners by the storages of the arguments, calls the
// listener, and continues below the key. Views of a parameter share its storage and keep its keys;
// results of operators have neither. Tensors without the key never reach the fallback, so other
// models in the process pay nothing.
// Should LibTorch drop the key, there is a second way: global callbacks of at::RecordFunction see
// the same operators in the same order, by public calls only (touch_trap_test.cpp), and could call
// the same Listener. But they run for every operator of the process, and their exceptions are
// swallowed, so an access outside of a forward would get the storage's own message and no more.
//
// [Note: numbers of a shard]
// The tensors of Engine::parameters(), and their `.grad`, have the key, too. The listener gets the
// operator that uses them (Listener::shard). If ranks hold different parts, an operator that makes
// a number of a part (clip_grad_norm_, LBFGS, a norm by hand) would make another number on each
// rank. So the trap checks the results. A view is allowed. A scalar, a tensor without dimensions,
// or one with fewer elements is refused. A result of the same size still has the shard's values and
// gets the key as well, so that abs().max() is refused, too. clone() and results written in place
// are the caller's own.
//
// A key has one fallback in a process. So other uses of the key by this library are called from
// here: a thread may include it in all its calls (libtorch/default_device.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <span>
#include <string>

namespace fsdp::touch_trap {

// The owner of a storage that operators touch: the engine's side of a unit.
class Touched {
 protected:
  ~Touched() = default;
};

// An operator on parameters that is about to run, or has run.
struct Touch {
  const std::string& name;  // "aten::linear"
  // The units, each once, in the order of the arguments.
  std::span<Touched* const> units;
  // The first of them that the operator writes to; null if it only reads.
  Touched* written = nullptr;
};

// The content of a watched storage.
enum class Holds : uint8_t { kParameters, kMainShard, kGradients };

// An operator on a unit's main shard, or on its gradients, that is about to run.
struct ShardTouch {
  const std::string& name;
  Touched* unit;
  Holds holds;  // not kParameters
  bool writes;
};

// The receiver of the trap's reports. It is called in the thread that calls the operator.
class Listener {
 public:
  virtual ~Listener() = default;
  // Called before the operator runs, for each argument that is a shard. May throw as `before`.
  virtual void shard(const ShardTouch& /*touch*/) {}
  // Called before the operator runs. If it throws, the operator does not run. Returns whether
  // `after` is to be called.
  virtual bool before(const Touch& touch) = 0;
  // Called after the operator has run. `results`: the tensors that it returned.
  virtual void after(const Touch& touch, std::span<const at::Tensor> results) = 0;
  // Called when LibTorch's own error leaves the operator.
  virtual void failed(const Touch& touch, c10::Error& error) = 0;
};

// Arms the trap for `listener`, once a process, and proves that it works. `listener` lives to the
// end of the process.
// Errors: StateError if another library has the key, or this LibTorch treats it differently.
void arm(Listener& listener);

// A function that runs before any listener, for each operator of its thread that reaches the trap.
// It returns true if it has done the operator's work. Null: no function.
// Requires: the thread includes key() in its calls.
using OfThread = bool (*)(const c10::FunctionSchema& schema, torch::jit::Stack& stack);
void set_of_thread(OfThread does);

// The owner and content of a storage. A null owner: operators are not reported any more.
struct Watch {
  Touched* owner = nullptr;
  Holds holds = Holds::kParameters;
  bool is_cut = false;  // other ranks hold other parts of the whole
};

// A storage that the trap knows.
class WatchedStorage final : public c10::StorageImpl {
 public:
  WatchedStorage(size_t bytes, at::DataPtr data, const Watch& watch);
  Watch watch;
};

// Returns the key that makes operators reach the trap.
c10::DispatchKeySet key();
// Adds the key to a dense tensor.
void watch(const at::Tensor& tensor);
// Returns the owner of a parameter, a shard or a view of one; null if `tensor` has no owner.
Touched* owner_of(const at::Tensor& tensor);
// Removes the owner of `tensor`'s storage. Does nothing if it is no WatchedStorage.
void forget_owner(const at::Tensor& tensor);

// A scope in which operators of this thread are not reported: the engine's own, which bind
// parameters.
class Unseen {
 public:
  Unseen();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fsdp::touch_trap

// Reports every operator that receives a parameter of a unit chosen by policy, a main shard or a
// main gradient. The report is made before the operator runs. Nothing else shows when the
// forward of such a unit runs, or how a caller uses a shard. No other file depends on the mechanism
// described below.
//
// [Note: the trap]
// Watched tensors have one additional dispatch key: DeferredInit, which LibTorch reserves for an
// extension. One boxed fallback of this key runs for every operator that receives a watched tensor,
// before autograd and autocast. The fallback finds the owners by the storages of the arguments,
// calls the listener, and redispatches below the key. Views of a parameter share its storage and
// keep its keys. Results of operators have neither this storage nor the key. Tensors without the
// key never reach the fallback, so other models in the process have no extra cost.
// If LibTorch removes the key, the trap can be built without this key. Global callbacks of
// at::RecordFunction see the same operators in the same order, through public calls only
// (touch_trap_test.cpp), and could call the same Listener. But these callbacks run for every
// operator of the process, and their exceptions are swallowed. An access outside a forward would
// then only throw the storage's own message.
//
// [Note: numbers of a shard]
// The tensors of Engine::parameters() and their `.grad` have the key too. The listener is called
// with the operator that uses them (Listener::shard). An operator that reduces a slice to a number
// (clip_grad_norm_, LBFGS, a norm by hand) would compute a different number on each rank if ranks
// hold different slices. So the trap checks the results of operators. A view is allowed. A scalar
// or a tensor without dimensions is refused. A tensor with fewer elements is refused too, unless
// the operator only selects elements (index, gather). A result of the same size still has the
// shard's values, so it gets the key too; abs().max() is therefore refused. The result of clone(),
// and results written in place, belong to the caller and are not checked.
//
// A process can have only one fallback per key, but DefaultDevice (libtorch/default_device.h) uses
// the key too: its thread includes the key in all operators that it calls. Therefore the fallback
// in this file also calls the thread's function (OfThread).
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

// The owner of a storage that operators touch. An engine derives its own class per unit.
class Touched {
 protected:
  ~Touched() = default;
};

// A call of an operator on parameters, before or after the operator runs.
struct Touch {
  const std::string& name;  // "aten::linear"
  // The units whose parameters the operator receives, each once, in the order of the arguments.
  std::span<Touched* const> units;
  // The first unit to which the operator writes; null if the operator only reads.
  Touched* written = nullptr;
};

// The kind of content in a watched storage.
enum class Holds : uint8_t { kParameters, kMainShard, kGradients };

// A call of an operator on a unit's main shard or main gradients, before the operator runs.
struct ShardTouch {
  const std::string& name;
  Touched* unit;
  Holds holds;  // not kParameters
  bool writes;
};

// The receiver of the trap's reports. Its functions run in the thread that calls the operator.
class Listener {
 public:
  virtual ~Listener() = default;
  // Called before the operator runs, for each argument that is a shard. If it throws, the operator
  // does not run.
  virtual void shard(const ShardTouch& /*touch*/) {}
  // Called before the operator runs. If it throws, the operator does not run. Returns true if
  // `after` must be called.
  virtual bool before(const Touch& touch) = 0;
  // Called after the operator has run. `results` are the tensors that the operator returned.
  virtual void after(const Touch& touch, std::span<const at::Tensor> results) = 0;
  // Called when an error of LibTorch leaves the operator.
  virtual void failed(const Touch& touch, c10::Error& error) = 0;
};

// Arms the trap for `listener`, once per process, and tests that it works. `listener` must live
// until the process ends.
// Errors: StateError if another library uses the key, or if this LibTorch treats the key
//   differently.
void arm(Listener& listener);

// A function that runs before any listener, for each operator of its thread that reaches the trap.
// The function returns true if it has already done the operator's work. Null removes the function.
// Requires: the thread includes key() in its calls.
using OfThread = bool (*)(const c10::FunctionSchema& schema, torch::jit::Stack& stack);
void set_of_thread(OfThread does);

// The owner and content of a storage. If the owner is null, operators are no longer reported.
struct Watch {
  Touched* owner = nullptr;
  Holds holds = Holds::kParameters;
  bool is_cut = false;  // other ranks hold other slices
};

// A storage that the trap watches.
class WatchedStorage final : public c10::StorageImpl {
 public:
  WatchedStorage(size_t bytes, at::DataPtr data, const Watch& watch);
  Watch watch;
};

// Returns the dispatch key that makes operators reach the trap.
c10::DispatchKeySet key();
// Adds key() to a dense tensor, so that operators on the tensor reach the trap.
void watch(const at::Tensor& tensor);
// Returns the owner of a parameter, a shard or a view of one of these; null if `tensor` has no
// owner.
Touched* owner_of(const at::Tensor& tensor);
// Removes the owner of `tensor`'s storage. Does nothing if the storage is not a WatchedStorage.
void forget_owner(const at::Tensor& tensor);

// A scope in which operators of this thread are not reported. The engine uses it for its own
// operators, which bind parameters.
class Unseen {
 public:
  Unseen();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fsdp::touch_trap

// Sees every operator that is given a parameter of a unit by policy, a main shard or a gradient of
// one, before it runs: nobody else tells where the forward of such a unit is, or what becomes of a
// shard. The one place that knows how.
//
// [Note: the trap]
// Such parameters carry a dispatch key more than others, DeferredInit, which LibTorch has kept free
// for an extension. One boxed fallback of this key is called for every operator that is given one
// of them, before autograd and autocast; it asks the storages of the arguments whose they are,
// tells the listener, and goes on below the key. Views of a parameter share its storage and keep
// its keys; what an operator computes has neither. Tensors without the key never come here, so
// models of others in the same process pay nothing.
// The second way, should the key be taken away: at::RecordFunction's global callbacks see the same
// operators by public calls only, in the same order (touch_trap_test.cpp), and would tell the same
// Listener. They are called for every operator of the process, and what they throw is swallowed, so
// that an access outside of a forward would be said by the storage's own message and no more.
//
// [Note: numbers of a shard]
// What Engine::parameters() hands out, and `.grad` of it, carry the key, too. The listener is told
// which operator uses them (Listener::shard). Where ranks hold different parts, an operator that
// makes a number of them (clip_grad_norm_, LBFGS, a norm by hand) would make another one on each
// rank: the trap looks at the result. A view is left alone; a scalar, a tensor without dimensions
// or with fewer elements is refused; of the same size it is the shard's values still, and is given
// the key as well, so that abs().max() is refused, too. clone() and what is written in place are
// the caller's own.
//
// A key has one fallback in a process, so what else the library does by this one is called from
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

// Whose storage an operator touches: the engine's side of a unit.
class Touched {
 protected:
  ~Touched() = default;
};

// An operator that is about to run, or has.
struct Touch {
  const std::string& name;  // "aten::linear"
  // Each once, in the order of the arguments.
  std::span<Touched* const> units;
  // Of these, the first that it writes to; null: it only reads.
  Touched* written = nullptr;
};

enum class Holds : uint8_t { kParameters, kMainShard, kGradients };

// An operator that is about to run on a unit's main shard, or its gradients.
struct ShardTouch {
  const std::string& name;
  Touched* unit;
  Holds holds;  // not kParameters
  bool writes;
};

class Listener {
 public:
  virtual ~Listener() = default;
  // As before, for each argument that is a shard.
  virtual void shard(const ShardTouch& /*touch*/) {}
  // In the thread that calls the operator. What it throws leaves the operator, which does not run.
  // Returns whether `after` is wanted.
  virtual bool before(const Touch& touch) = 0;
  // It has run. `results`: the tensors that it returns.
  virtual void after(const Touch& touch, std::span<const at::Tensor> results) = 0;
  // LibTorch's own error leaves the operator.
  virtual void failed(const Touch& touch, c10::Error& error) = 0;
};

// Arms the trap, once a process, for `listener`, which lives for good, and proves that it works.
// Errors: StateError where another library has taken the key, or this LibTorch treats it otherwise.
void arm(Listener& listener);

// What a thread does about each of its operators that comes here, before any listener; true: the
// operator has been done. Null: nothing. Requires: the thread includes key() in its calls.
using OfThread = bool (*)(const c10::FunctionSchema& schema, torch::jit::Stack& stack);
void set_of_thread(OfThread does);

// Whose a storage is. Null: nobody's any more, operators pass.
struct Watch {
  Touched* owner = nullptr;
  Holds holds = Holds::kParameters;
  bool is_cut = false;  // other ranks hold other parts of the whole
};

class WatchedStorage final : public c10::StorageImpl {
 public:
  WatchedStorage(size_t bytes, at::DataPtr data, const Watch& watch);
  Watch watch;
};

// The key that makes operators come here.
c10::DispatchKeySet key();
// Gives a dense tensor the key.
void watch(const at::Tensor& tensor);
// Whose unit's `tensor` is a parameter, a shard or a view of one; null: nobody's.
Touched* owner_of(const at::Tensor& tensor);
// What holds views of `tensor`'s storage is nobody's any more. Nothing if it is no WatchedStorage.
void forget_owner(const at::Tensor& tensor);

// While alive, operators of this thread pass unseen: the engine's own, which seat parameters.
class Unseen {
 public:
  Unseen();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fsdp::touch_trap

// Sees every operator that is given a parameter of a unit by policy, before it runs: nobody else
// tells where the forward of such a unit is. The one place that knows how.
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
// A key has one fallback in a process, so what else the library does by this one is called from
// here: a thread may include it in all its calls (engine/default_device.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

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

class Listener {
 public:
  virtual ~Listener() = default;
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

// A storage that knows whose it is. Null: nobody's any more, operators pass.
class WatchedStorage final : public c10::StorageImpl {
 public:
  WatchedStorage(size_t bytes, at::Device device, Touched* owner);
  Touched* owner = nullptr;
};

// The key that makes operators come here.
c10::DispatchKeySet key();
// Whose unit's `tensor` is a parameter or a view of one; null: nobody's.
Touched* owner_of(const at::Tensor& tensor);

// While alive, operators of this thread pass unseen: the engine's own, which seat parameters.
class Unseen {
 public:
  Unseen();

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace fsdp::touch_trap

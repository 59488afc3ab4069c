// The engine's interface to a unit (UnitBase) and to one forward of a unit (UnitCall). User code
// includes fsdp/unit.h instead.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <string_view>

namespace fsdp {

class Engine;
class EngineUnit;

// The base of all units. User code needs this type only to hold units of different modules.
class UnitBase {
 public:
  // If no engine owns the unit, removes the unit from the open BuildScope, if any.
  virtual ~UnitBase();
  virtual torch::nn::Module& as_module() = 0;
  // Returns true if an engine was made with this unit, even if that engine was destroyed.
  bool attached() const { return attached_; }

  // Returns true if backward will recompute a forward that begins now (Options::recompute).
  bool recomputes() const { return recomputes_ && runs_ == 0 && c10::GradMode::is_enabled(); }
  // A scope in which a recomputation runs the unit's own forward. The scope prevents a nested
  // recomputation of the same forward.
  class Again {
   public:
    explicit Again(UnitBase& unit) : unit_(unit) { ++unit_.runs_; }
    ~Again() { --unit_.runs_; }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    UnitBase& unit_;
  };
  // Returns "unit 'layers.0'", for use in errors.
  std::string unit_place() const;
  // Throws the error for a forward that cannot be recomputed, because it may write to its
  // arguments, returns nothing, or has arguments that cannot be copied.
  [[noreturn]] void refuse_recompute() const;

 protected:
  UnitBase() = default;
  // Makes a new unit that no engine owns. The copy does not share the original's engine.
  UnitBase(const UnitBase&) {}
  UnitBase& operator=(const UnitBase&) { return *this; }
  // Shards `module`, whose constructor (M's) has just returned, if a BuildScope is open. Returns
  // true, so that the initialiser of a member can call it.
  bool built(torch::nn::Module& module);
  // Throw StateError. The overrides of clone() and to() call these functions if an engine owns the
  // unit.
  [[noreturn]] static void refuse_clone();
  [[noreturn]] void refuse_move() const;
  // Frees the unit's own main gradients. On the root, frees the main gradients of all units.
  void zero_gradients();
  // Throws StateError if an engine owns the unit and its parameters are not whole. `done` names the
  // attempted operation in the error ("saved").
  void require_whole(std::string_view done) const;

 private:
  friend class UnitCall;
  friend class Attachment;
  bool attached_ = false;
  bool recomputes_ = false;
  int runs_ = 0;
  std::weak_ptr<EngineUnit> engine_unit_;
};

// One forward of a unit. Unit makes a UnitCall for each forward; user code uses UnitScope instead.
// Order: input() for each tensor, begin(), the module's own forward, output() and written() for
//   each tensor, end(). If end() was not called because of an exception, the destructor reshards
//   the unit.
class UnitCall {
 public:
  explicit UnitCall(UnitBase& unit);
  // Makes the call of the root unit for Engine::forward. The call is active only if the root is a
  // unit by Options::units. It is inactive if the root is an fsdp::Unit.
  explicit UnitCall(const Engine& engine);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  // Returns false if no engine owns the unit. The caller then need not call any other function of
  // this UnitCall.
  bool active() const { return unit_ != nullptr; }
  void input(at::Tensor& tensor);
  void input(const at::Tensor& tensor);
  void begin();
  // Registers a tensor that forward returns.
  void output(at::Tensor& tensor);
  // Registers a tensor of an argument to which forward can write. If forward has replaced the
  // tensor, the new tensor counts as an output. If forward has not replaced the tensor, end()
  // detects if forward changed it in place.
  void written(at::Tensor& tensor);
  void end();
  // Adds the unit and the likely cause to a LibTorch error that forward has thrown.
  void explain(c10::Error& error) const;

 private:
  struct State;
  bool is_input(const at::Tensor& tensor) const;

  std::shared_ptr<EngineUnit> unit_;  // keeps the unit's state alive during the call
  std::unique_ptr<State> state_;
};

}  // namespace fsdp

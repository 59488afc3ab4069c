// The engine's interface to a unit (UnitBase) and to one forward of it (UnitCall). User code
// includes fsdp/unit.h.
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

// The base of all units. User code names this type only to hold units of different modules.
class UnitBase {
 public:
  // Under a BuildScope: the scope forgets a unit that no engine owns.
  virtual ~UnitBase();
  virtual torch::nn::Module& as_module() = 0;
  // Returns true from the engine's construction on, also after the engine's destruction.
  bool attached() const { return attached_; }

  // Returns true if backward will recompute a call made now (Options::recompute). For Unit.
  bool recomputes() const { return recomputes_ && runs_ == 0 && c10::GradMode::is_enabled(); }
  // A scope around the unit's own run of a recomputed forward, which is not recomputed again.
  class Again {
   public:
    explicit Again(UnitBase& unit) : unit_(unit) { ++unit_.runs_; }
    ~Again() { --unit_.runs_; }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    UnitBase& unit_;
  };
  // Returns "unit 'layers.0'", for errors.
  std::string unit_place() const;
  // Throws for a recomputed forward that may write to its arguments or has arguments that cannot be
  // copied.
  [[noreturn]] void refuse_recompute() const;

 protected:
  UnitBase() = default;
  // Makes a new unit without an engine.
  UnitBase(const UnitBase&) {}
  UnitBase& operator=(const UnitBase&) { return *this; }
  // Shards the module that M's constructor has just made, inside a BuildScope. Returns true.
  bool built(torch::nn::Module& module);
  // Throw from the overrides of Module's virtual functions on a unit that an engine owns.
  [[noreturn]] static void refuse_clone();
  [[noreturn]] void refuse_move() const;
  // Frees the unit's own main gradients; on the root those of all units.
  void zero_gradients();
  // Checks that the parameters are whole, if an engine owns the unit. `done` names the attempt
  // ("saved").
  // Errors: StateError.
  void require_whole(std::string_view done) const;

 private:
  friend class UnitCall;
  friend class Attachment;
  bool attached_ = false;
  bool recomputes_ = false;
  int runs_ = 0;
  std::weak_ptr<EngineUnit> engine_unit_;
};

// One forward of a unit, from inputs to outputs. Unit makes it; user code uses UnitScope.
// Order: input() for each tensor, begin(), the module's own forward, output() and written() for
//   each tensor, end(). Destruction without end() (after an exception) reshards the unit.
class UnitCall {
 public:
  explicit UnitCall(UnitBase& unit);
  // For Engine::forward: a call of the root if a policy chose it; inactive if the root is an
  // fsdp::Unit.
  explicit UnitCall(const Engine& engine);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  // Returns false without an engine; then no other function needs to be called.
  bool active() const { return unit_ != nullptr; }
  void input(at::Tensor& tensor);
  void input(const at::Tensor& tensor);
  void begin();
  // Registers a tensor that forward returns.
  void output(at::Tensor& tensor);
  // Registers a tensor of an argument that forward can write. It is an output if forward replaced
  // it, and else stays the caller's. end() finds inputs that were changed in place.
  void written(at::Tensor& tensor);
  void end();
  // Adds the unit and the likely cause to an error of LibTorch's that leaves forward.
  void explain(c10::Error& error) const;

 private:
  struct State;
  bool is_input(const at::Tensor& tensor) const;

  std::shared_ptr<EngineUnit> unit_;  // keeps the unit's state alive during the call
  std::unique_ptr<State> state_;
};

}  // namespace fsdp

// What the engine knows of a unit, and one forward of it. Users see fsdp/unit.h.
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

// Users name this type only to hold units of different modules.
class UnitBase {
 public:
  // Under a BuildScope: the scope forgets a unit that no engine has taken.
  virtual ~UnitBase();
  virtual torch::nn::Module& as_module() = 0;
  // True from the engine's construction on, also after the engine is gone.
  bool attached() const { return attached_; }

  // For Unit: whether a call now is to be recomputed in backward (Options::recompute).
  bool recomputes() const { return recomputes_ && runs_ == 0 && c10::GradMode::is_enabled(); }
  // While alive the unit's own run of its forward is under way, which is not recomputed once more.
  class Again {
   public:
    explicit Again(UnitBase& unit) : unit_(unit) { ++unit_.runs_; }
    ~Again() { --unit_.runs_; }
    Again(const Again&) = delete;
    Again& operator=(const Again&) = delete;

   private:
    UnitBase& unit_;
  };
  // "unit 'layers.0'"; for errors.
  std::string unit_place() const;
  // Of a forward that may write to its arguments, or takes what cannot be copied.
  [[noreturn]] void refuse_recompute() const;

 protected:
  UnitBase() = default;
  // A copy is a new, unattached unit.
  UnitBase(const UnitBase&) {}
  UnitBase& operator=(const UnitBase&) { return *this; }
  // Inside a BuildScope: shards what M's constructor has just made. Returns true.
  bool built(torch::nn::Module& module);
  // What Module's virtual functions ask of an attached unit.
  [[noreturn]] static void refuse_clone();
  [[noreturn]] void refuse_move() const;
  // Hands the unit's own main gradients back; the root's: those of all units.
  void zero_gradients();
  // Errors: StateError if an engine has taken the unit and its parameters are not whole here;
  // `done` says what was to be done to it ("saved").
  void require_whole(std::string_view done) const;

 private:
  friend class UnitCall;
  friend class Attachment;
  bool attached_ = false;
  bool recomputes_ = false;
  int runs_ = 0;
  std::weak_ptr<EngineUnit> engine_unit_;
};

// One forward of a unit, from inputs to outputs. Made by Unit; users see it as UnitScope.
// Order: input() for each tensor, begin(), the module's own forward, output() and written() for
// each tensor, end(). Destruction without end() (an exception) gives the parameters back.
class UnitCall {
 public:
  explicit UnitCall(UnitBase& unit);
  // Of an engine's root by policy (Engine::forward); of one whose root is a Unit it is none.
  explicit UnitCall(const Engine& engine);
  ~UnitCall();
  UnitCall(const UnitCall&) = delete;
  UnitCall& operator=(const UnitCall&) = delete;

  // False without an engine: nothing else needs to be called then.
  bool active() const { return unit_ != nullptr; }
  void input(at::Tensor& tensor);
  void input(const at::Tensor& tensor);
  void begin();
  // What forward returns.
  void output(at::Tensor& tensor);
  // A tensor of an argument that forward could change: an output if it did. One that forward left
  // alone stays the caller's. Tensors changed in place are found among the inputs by end().
  void written(at::Tensor& tensor);
  void end();
  // LibTorch's own error leaves forward: its message is to say which unit, and what is likely.
  void explain(c10::Error& error) const;

 private:
  struct State;
  bool is_input(const at::Tensor& tensor) const;

  std::shared_ptr<EngineUnit> unit_;  // keeps the unit's state alive during the call
  std::unique_ptr<State> state_;
};

}  // namespace fsdp

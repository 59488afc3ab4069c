// ModuleStates: the training flags and buffers of modules before the first run of a recomputed
// function. They are restored for the function's second run.
//
// [Note: modules of a recomputed function]
// A recomputed function is code that may capture any module. Modules are recorded for two kinds of
// units: the unit whose forward calls the function, and units whose forwards run in the function. A
// unit of the second kind is recorded when its forward begins. The modules of a unit are its module
// and the modules inside it, without modules of other units. If the first run did not change a
// buffer, its copy is dropped unless the buffer is small. Small copies are kept for two reasons.
// First, kernels of batch normalisation write running statistics without a new version. Second,
// code outside the function may write a small buffer before backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class EngineUnit;

// The states that were recorded for one recomputed function.
class ModuleStates {
 public:
  // A scope in which `running` is the unit whose forward this thread runs. Scopes may end in any
  // order.
  class Running {
   public:
    explicit Running(std::weak_ptr<EngineUnit> running);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::weak_ptr<EngineUnit> around_;
  };
  // Returns the unit whose forward this thread runs; null if there is none.
  static std::shared_ptr<EngineUnit> running();
  // A scope in which this thread runs a recomputed function and records the modules in `states`. In
  // the function's second run, `states` is null and nothing is recorded.
  class Recording {
   public:
    explicit Recording(ModuleStates* states);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ModuleStates* const around_;
  };
  // Records the unit if this thread is in a first run. Called when the unit begins a forward in
  // this thread.
  static void begin(const EngineUnit& unit);
  // Records the unit whose forward this thread runs, because the function is a section of that
  // forward.
  void remember_running();

  // Returns true if the unit has begun a forward in the first run.
  bool has(const EngineUnit& unit) const;
  // Drops the copies that the second run does not need. Must be called after the first run.
  void settle();

  // A scope in which modules and buffers have their recorded state. At its end they get back the
  // state and the versions that they had before the scope, so backward changes nothing that the
  // program can see.
  // Errors: StateError if a buffer whose copy was dropped has changed since the first run.
  class Restored {
   public:
    explicit Restored(const ModuleStates& states);
    ~Restored();
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

   private:
    struct Now {
      at::Tensor buffer, value;
      int64_t version = 0;
    };
    std::vector<Now> now_;
    std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> flags_;  // is_training
    const Running running_;
    const Recording recording_;
  };

 private:
  struct KeptBuffer {
    std::string fqn;
    at::Tensor buffer;
    at::Tensor found;  // copy of the recorded value; undefined if dropped
    int64_t version = 0;
    bool is_inside = false;  // true for a buffer of a unit that ran in the function
  };
  void remember(const EngineUnit& unit, bool is_inside);

  std::weak_ptr<EngineUnit> running_;
  std::vector<const EngineUnit*> units_;                                    // only compared
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> flags_;  // is_training
  std::vector<KeptBuffer> buffers_;
};

}  // namespace fsdp

// ModuleStates: training flags and buffers of modules, as the first run of a recomputed function
// found them, for its second run.
//
// [Note: modules of a recomputed function]
// Such a function is code that may capture any module. Covered are the units that run in it, from
// the begin of their forwards, and the unit whose forward calls it. A unit's own modules are its
// module and those inside, without modules of other units. A copy of a buffer that the first run
// did not change is dropped, unless it is small. Kernels of batch normalisation write running
// statistics without a new version, and a small buffer may be written before backward by code
// outside of the function.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class EngineUnit;

// The states that one recomputed function has recorded.
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
  // Returns the unit whose forward this thread runs, null if there is none.
  static std::shared_ptr<EngineUnit> running();
  // A scope in which this thread is in the first run of a function; null: in its second.
  class Recording {
   public:
    explicit Recording(ModuleStates* states);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ModuleStates* const around_;
  };
  // Called when the unit begins a forward in this thread: records it during a first run.
  static void begin(const EngineUnit& unit);
  // Records the unit whose forward this thread runs: the function is part of that forward.
  void remember_running();

  // Returns whether the unit has begun a forward in the first run.
  bool has(const EngineUnit& unit) const;
  // Drops the copies that the second run does not need. Call it after the first run.
  void settle();

  // A scope in which modules and buffers are as they were recorded. At its end they are as they
  // were before it, with their versions: to the program backward changes nothing.
  // Errors: StateError if a buffer whose copy was dropped has changed since.
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
    at::Tensor found;  // a copy of the recorded value; undefined: dropped
    int64_t version = 0;
    bool is_inside = false;  // of a unit that ran in the function
  };
  void remember(const EngineUnit& unit, bool is_inside);

  std::weak_ptr<EngineUnit> running_;
  std::vector<const EngineUnit*> units_;                                    // to be compared only
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> flags_;  // is_training
  std::vector<KeptBuffer> buffers_;
};

}  // namespace fsdp

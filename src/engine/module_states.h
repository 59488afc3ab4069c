// Training flags and buffers of modules, as the first run of a recomputed function found them: for
// its second run.
//
// [Note: modules of a recomputed function]
// Such a function is code that may capture any module. Seen are the units that run in it, from
// where their forward begins, and the unit whose forward calls it. A unit's own modules are its
// module and those inside, without the units among them. Copies of buffers that the first run has
// not moved are dropped, but for small ones: kernels of batch normalisation move running
// statistics without counting a version, and a small one may be moved before backward by code that
// has nothing to do with the function.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdp {

class EngineUnit;

class ModuleStates {
 public:
  // While alive, `running` is the unit whose forward this thread runs. Scopes may end in any order.
  class Running {
   public:
    explicit Running(std::weak_ptr<EngineUnit> running);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::weak_ptr<EngineUnit> around_;
  };
  // The unit whose forward this thread runs; null: none's.
  static std::shared_ptr<EngineUnit> running();
  // While alive, this thread is in the first run of a function; null: in its second.
  class Recording {
   public:
    explicit Recording(ModuleStates* states);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    ModuleStates* const around_;
  };
  // The unit begins a forward in this thread: it is remembered if a first run is under way.
  static void begin(const EngineUnit& unit);
  // Remembers the unit whose forward this thread runs: a function that is called now is part of it.
  void remember_running();

  // True if the unit has begun a forward in the first run.
  bool has(const EngineUnit& unit) const;
  // Drops the copies that the second run does not need. Call it after the first one.
  void settle();

  // While alive, modules and buffers are as they were found; then again as they are now, with
  // their versions: backward moves nothing.
  // Errors: StateError where a buffer that was not kept has changed since.
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
    at::Tensor found;  // a copy; undefined: dropped
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

// Saves and loads a whole training: weights, optimizers, schedules, the position in the data and
// random states.
//
//   fsdp::TrainingState state(engine);
//   state.add("optimizer", optimizer);
//   state.add("schedule", scheduler);
//   state.add("best", best_score);
//   fsdp::save(state, "out/step-00001200", {.step = 1200});
//   …
//   const int64_t step = fsdp::load(state, "out/step-00001200").step;
//
// checkpoints.h saves every N steps and resumes from the newest checkpoint. docs/checkpoints.md
// describes the files.
//
// A checkpoint is a folder. Each rank writes the elements that it holds into one safetensors file,
// so no rank gathers a unit. A checkpoint can be loaded with another number of ranks, strategy,
// param_dtype, cpu_offload and choice of units. If none of these differs from the saved run's, the
// resumed run takes bitwise equal steps.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/ema.h>
#include <fsdp/engine.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/optim.h>
#include <fsdp/sampler.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace fsdp {

class BestModel;

// The objects of a training run, by name. A TrainingState refers to these objects and must be
// destroyed before them.
class TrainingState {
 public:
  // Adds the engine as "model": its weights, its buffers, the parameters that it ignores, and the
  // states of this rank's random generators. Collective.
  explicit TrainingState(Engine& engine);
  ~TrainingState();
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Adds an object and returns this state. All ranks add the same objects in the same order. An
  // engine may be added beside the first one, on the same mesh: the discriminator of a GAN, or an
  // average of the weights.
  // Errors: InvalidArgument if the name is taken, or is not made of letters, digits, '_', '-' and
  //   '.'. StateError if the object belongs to an engine that was not added.
  TrainingState& add(std::string name, Engine& engine);
  TrainingState& add(std::string name, Optimizer& optimizer);
  TrainingState& add(std::string name, LRScheduler& scheduler);
  TrainingState& add(std::string name, ReduceLROnPlateau& scheduler);
  TrainingState& add(std::string name, LossScaler& scaler);
  TrainingState& add(std::string name, SampleCursor& cursor);
  TrainingState& add(std::string name, BestModel& best);
  TrainingState& add(std::string name, Ema& ema);
  // Adds LibTorch's Adam, AdamW or SGD on Engine::parameters(). Errors: InvalidArgument for another
  // class, and for a tensor that is not a parameter of an added engine.
  TrainingState& add(std::string name, torch::optim::Optimizer& optimizer);
  // Adds a value that is equal on all ranks, such as the best score so far. Rank 0's value is
  // saved.
  TrainingState& add(std::string name, int64_t& value);
  TrainingState& add(std::string name, double& value);
  TrainingState& add(std::string name, std::string& value);
  // Adds a tensor. Loading replaces the elements of the tensor, which must have the saved shape and
  // dtype.
  TrainingState& add(std::string name, at::Tensor& value);

  struct Parts;

 private:
  friend struct TrainingStateAccess;  // internal: src/checkpoint/training_state_parts.h
  std::unique_ptr<Parts> parts_;
};

struct SaveStateOptions {
  int64_t step = 0;           // optimizer steps that the training has done
  bool weights_only = false;  // true: only the weights and buffers of engines
  // Returns true for tensors that are not saved, by name: "model/weight/head.weight".
  std::function<bool(std::string_view name)> exclude{};
};

// Writes a checkpoint. `folder` appears only when all of its files are complete and on disk. Until
// it appears, the files are in a hidden folder beside it, which is removed after a failure. Every
// rank writes its own elements. If several ranks hold the same elements, each of them writes an
// equal part of these. Needs at most 16 MiB of additional memory per rank. The ranks wait for each
// other twice, regardless of the number of tensors, and once more if a model has buffers.
// Requires: collective; between steps.
// Errors: IoError kCannotCreate if `folder` exists or cannot be created; IoError kIoError (disk
//   full); StateError if gradients wait for an optimizer's step, or if an optimizer, scheduler or
//   scaler of an added engine was not added. If one rank fails, this function throws on all ranks.
void save(TrainingState& state, const std::filesystem::path& folder,
          const SaveStateOptions& options = {});
// Saves for callers that can continue after a failure of the disk. Other errors are thrown.
[[nodiscard]] Outcome try_to_save(TrainingState& state, const std::filesystem::path& folder,
                                  const SaveStateOptions& options = {});

struct LoadStateOptions {
  bool weights_only = false;  // true: only the weights and buffers of engines
  // Returns true for the tensors that the load leaves unchanged.
  std::function<bool(std::string_view name)> exclude{};
};

struct LoadStateReport {
  int64_t step = 0;  // of the checkpoint
  // One line for each difference from the saved run that can change the results of steps: another
  // number of ranks, another version of LibTorch, other options.
  std::vector<std::string> notes;
};

// Loads a checkpoint into live objects, also in the middle of a run. Every rank checks the manifest
// and the bytes that it needs before any rank changes anything. Random states are restored last.
// Requires: collective; between steps. The same parameters are frozen as when the state was saved.
// Errors: IoError kIoError if a file cannot be read; IoError kCorruptData that names the file,
//   tensor or object if a file is damaged, or if the checkpoint is of another model, optimizer or
//   data set. After these errors nothing has changed.
LoadStateReport load(TrainingState& state, const std::filesystem::path& folder,
                     const LoadStateOptions& options = {});

}  // namespace fsdp

// Weights and an optimizer's state in and out of a live engine, as safetensors files; weights also
// from what PyTorch saves. No rank needs room for a whole model besides what it trains: each reads
// its own intervals, a piece of at most 8 MiB at a time, and what is saved is gathered a unit at a
// time.
//
//   fsdp::load_weights(engine, "pretrained/");  // or a .safetensors file, or a .pt
//   …
//   fsdp::save_weights(engine, "out/model.safetensors", {.dtype = torch::kBFloat16});
//   fsdp::save_weights_folder(engine, "out", {.max_shard_bytes = 1 << 30});  // shards and index
//   fsdp::save_optimizer(optimizer, "out/optimizer.safetensors");
//   …
//   fsdp::load_optimizer(optimizer, "out/optimizer.safetensors");  // on any number of ranks
//
// Weights are the parameters that the engine shards, by their FQNs; ignored parameters are the
// caller's. Buffers are loaded from files that have them, and not saved. All functions are
// collective, outside forward and backward; what fails on one rank ends all ranks, and one of them
// says it (agreement.h). A run that goes on from its weights (float32, the default) and its
// optimizer's state takes the steps that it would have taken, to the bit, on as many ranks; random
// numbers (dropout) are the program's.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/scalar_type.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

class Engine;
class Optimizer;
class SafetensorsFile;
class StoredWeights;

// Called on another thread than the caller's, one call at a time; equal on all ranks.
struct LoadOptions {
  // A beginning that stored names lose first: "module." of DataParallel, "_orig_mod." of
  // torch.compile, "model." of a wrapper. Names that do not have it stay; one of them must have it.
  std::string strip_prefix{};
  // The parameter that a stored tensor means; empty: the one of the same name.
  std::function<std::string(std::string_view stored)> parameter_name{};
  // Whether a tensor for which the model has no parameter may be left out, by its parameter_name;
  // empty: none may.
  std::function<bool(std::string_view name)> may_be_unused{};
  // Whether a parameter may be in no file, to keep its value; empty: none may. A module with such
  // parameters is there as a whole or not at all: half a head is a mistake.
  std::function<bool(std::string_view fqn)> may_be_missing{};
  // A file whose tensors come before the others', e.g. a head; null: none.
  const SafetensorsFile* instead = nullptr;
};

// What was done that a user may not expect; equal on all ranks.
struct LoadReport {
  std::vector<std::string> renamed;   // stored names that strip_prefix or parameter_name changed
  std::vector<std::string> replaced;  // parameters that `instead` and the other files have
  std::vector<std::string> unused;    // stored names
  std::vector<std::string> kept;      // parameters that no file has
  std::vector<std::string> copies;    // stored names of equal copies of a tied parameter
  // The last four in words, a line each, to be told once.
  std::vector<std::string> notes;
};

// Fills every rank's main shards from mapped files: only this rank's intervals are read. F32, F16,
// BF16 and F64 become float32. A buffer whose name a file has is filled on every rank, in its own
// type; others keep their values. A parameter that is registered under several names (tied weights)
// is found under any of them; where the files have it more than once, equal copies are one
// parameter, with a note.
// Errors: IoError kCorruptData with the names for tensors that are missing, unexpected or doubled,
//   and for copies of a tied parameter that differ; with both for a shape that differs or a type
//   that is no weight's; with tensor and element for a value of a parameter that is not finite as
//   float32: no step could be taken from there. Shards that were read before it have changed,
//   buffers have not. InvalidArgument for a strip_prefix that no name has.
LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options = {});
// The same from a file or a folder, whose format its content tells: safetensors, alone or in a
// folder (safetensors_folder.h); what PyTorch saves, `torch.save(model.state_dict(), file)` from
// Python, also as the entry "state_dict", "model_state_dict" or "model" of a training script's dict
// (a note says so), `torch::save(model, file)` from C++, torch.jit.save; a Hugging Face
// pytorch_model.bin, by its name or in a folder without safetensors, there also in shards with an
// index. Nothing in a file is run: entries that are no tensors are left out, and a note names them.
// Tensors may be views of each other and have any strides; one that does not lie in the file as the
// parameter does in memory takes this rank's part of it once more. The archive's check sums are
// compared, each rank reading its share of the records for it.
// Errors: also what opening them throws: kCorruptData for files that were written before PyTorch
//   1.6, for weights that are quantised, sparse, or have their neg or conj bit set, for records
//   that are damaged, compressed or encrypted, another byte order, tensors that are no views of
//   their storage, and names of functions that run code.
LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options = {});
// The same from files that are open already (stored_weights.h).
LoadReport load_weights(Engine& engine, const StoredWeights& weights,
                        const LoadOptions& options = {});

struct SaveOptions {
  // The file has this type: float32, bfloat16, float16 or float64; unset: float32.
  std::optional<c10::ScalarType> dtype;
  // The name in the file; empty: the FQN. Different parameters need different names.
  std::function<std::string(std::string_view fqn)> stored_name{};
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};

// Writes all parameters into one file, which appears complete or not at all. Rank 0 writes, and the
// others wait as long as that takes.
// Errors: IoError kCannotCreate, kIoError (disk full); InvalidArgument for a type that is not
//   floating and for a name given twice.
void save_weights(Engine& engine, const std::filesystem::path& file,
                  const SaveOptions& options = {});
// The same for callers that can do something about it, e.g. write elsewhere: what fails is in the
// outcome, and the file is as it was before.
[[nodiscard]] Outcome try_to_save_weights(Engine& engine, const std::filesystem::path& file,
                                          const SaveOptions& options = {});

struct SaveFolderOptions {
  SaveOptions weights{};
  // ShardOptions::max_shard_bytes.
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes all parameters into a folder that is there: model.safetensors, or shards and their index,
// in the order of units (safetensors_folder_writer.h says what a reader sees meanwhile).
// Errors: as save_weights.
void save_weights_folder(Engine& engine, const std::filesystem::path& folder,
                         const SaveFolderOptions& options = {});
// As try_to_save_weights; if it failed, the folder has the weights that it had before, or, after an
// error while files were given their names, perhaps none that can be used.
[[nodiscard]] Outcome try_to_save_weights_folder(Engine& engine,
                                                 const std::filesystem::path& folder,
                                                 const SaveFolderOptions& options = {});

// Writes the optimizer's state into one file, which appears complete or not at all: moments and
// counts of updates of the parameters that it trains, by FQN (`FQN.exp_avg`, `FQN.exp_avg_sq` or
// `FQN.momentum_buffer`, and `FQN.step`), also of those that were frozen since; in the metadata lr,
// steps(), the other options, what was set of its groups by their names, and a digest of the
// weights beside which it is saved. It does not depend on the number of ranks, on strategy, offload
// or units. Frozen parameters are not in it. A unit's moments are gathered one after the other;
// rank 0 writes, and the others wait as long as that takes.
// Requires: what was unfrozen was so after zero_grad.
// Errors: as save_weights.
void save_optimizer(Optimizer& optimizer, const std::filesystem::path& file);
[[nodiscard]] Outcome try_to_save_optimizer(Optimizer& optimizer,
                                            const std::filesystem::path& file);

struct OptimizerReport {
  // Options that are others than the saved optimizer's, and that the file has no digest of weights
  // (earlier versions wrote none), a line each; equal on all ranks.
  std::vector<std::string> notes;
};

struct LoadOptimizerOptions {
  // The engine's weights are not those beside which the state was saved, and are not meant to be:
  // saved in a lower type, averaged, changed since.
  bool beside_other_weights = false;
};

// Restores moments, counts of updates, steps(), lr, and what was set of groups from such a file, on
// any number of ranks; a rank reads its own intervals. All other options (betas, momentum, weight
// decay, groups) are the program's, unlike torch.optim's load_state_dict, which takes the file's:
// what differs is in the report. Gradients stay as they are.
// Requires: the engine has the weights beside which the state was saved: load_weights comes first.
//   The parameters that are trained, or were before they were frozen, are those of the file: freeze
//   and unfreeze before.
// Errors: IoError kIoError if the file cannot be read; kCorruptData, with the names, for a file of
//   something else or of another optimizer, for weights of another step (with both steps, as the
//   optimizers count them), for parameters and tensors that are missing,
//   unexpected, or have another shape, and for a value that is not finite.
OptimizerReport load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                               const LoadOptimizerOptions& options = {});
// The same for callers that can go on without: the file is looked at as a whole before anything
// changes, so what fails is in the outcome, and the optimizer is as it was, on every rank (but for
// a device that fails while values are copied).
[[nodiscard]] Outcome try_to_load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                                            OptimizerReport& report,
                                            const LoadOptimizerOptions& options = {});

}  // namespace fsdp

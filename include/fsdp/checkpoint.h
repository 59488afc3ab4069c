// Loads and saves weights and an optimizer's state of a live engine, as safetensors files. Weights
// can also be loaded from files that PyTorch saved. No rank needs memory for a whole model beyond
// the state that it trains: each reads its own intervals in pieces of at most 8 MiB, and saving
// gathers one unit at a time.
//
//   fsdp::load_weights(engine, "pretrained/");  // or a .safetensors file, or a .pt
//   …
//   fsdp::save_weights(engine, "out/model.safetensors", {.dtype = torch::kBFloat16});
//   fsdp::save_weights_folder(engine, "out", {.max_shard_bytes = 1 << 30});  // shards and index
//   fsdp::save_optimizer(optimizer, "out/optimizer.safetensors");
//   …
//   fsdp::load_optimizer(optimizer, "out/optimizer.safetensors");  // on any number of ranks
//
// Weights are the parameters that the engine shards, by FQN. The caller saves ignored parameters.
// Buffers are loaded from files that have them, and not saved.
// All functions are collective, outside forward and backward. A failure on one rank ends all ranks,
// and one of them reports it (agreement.h).
// A run that resumes from its weights (float32, the default) and its optimizer's state, on as many
// ranks, takes the same steps to the bit. The program restores its random numbers (dropout).
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

// Options of load_weights, equal on all ranks. The functions are called one at a time, on another
// thread than the caller's.
struct LoadOptions {
  // Prefix that is removed from stored names first: "module." of DataParallel, "_orig_mod." of
  // torch.compile, "model." of a wrapper. Names without it stay; at least one name must have it.
  std::string strip_prefix{};
  // Returns the parameter's name for a stored tensor; empty: the same name.
  std::function<std::string(std::string_view stored)> parameter_name{};
  // Returns true if the file may have a tensor of this name (after parameter_name) although the
  // model does not; empty: never.
  std::function<bool(std::string_view name)> may_be_unused{};
  // Returns true if a parameter may be missing from all files and keep its value; empty: never.
  // Parameters of one module are missing together or not at all, because half a head is a mistake.
  std::function<bool(std::string_view fqn)> may_be_missing{};
  // A file that takes precedence over the others, e.g. with a head; null: none.
  const SafetensorsFile* instead = nullptr;
};

// A report of unexpected matches; equal on all ranks.
struct LoadReport {
  std::vector<std::string> renamed;   // stored names changed by strip_prefix or parameter_name
  std::vector<std::string> replaced;  // parameters in `instead` and in another file
  std::vector<std::string> unused;    // stored names that no parameter or buffer has
  std::vector<std::string> kept;      // parameters that no file has
  std::vector<std::string> copies;    // stored names of equal copies of a tied parameter
  // The last four in words, one line each, to be printed once.
  std::vector<std::string> notes;
};

// Fills every rank's main shards from mapped files; a rank reads only its own intervals. F32, F16,
// BF16 and F64 become float32. A buffer that a file has is filled on every rank, in its own type;
// others keep their values. A parameter registered under several names (tied weights) is found
// under any of them. If the files have several equal copies of it, a note says so.
// Errors: IoError kCorruptData, with the names, for tensors that are missing, unexpected or
//   duplicate, and for copies of a tied parameter that differ; with both shapes or types, for a
//   tensor of another shape or of a type that weights cannot have; with tensor and element, for a
//   parameter's value that is not finite as float32. Shards that were read before the error have
//   changed, buffers have not. InvalidArgument for a strip_prefix that no name has.
LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options = {});
// Loads weights from a file or a folder. The content decides the format:
//   safetensors, a file or a folder of them (safetensors_folder.h);
//   files of PyTorch: `torch.save(model.state_dict(), file)` from Python, also as the entry
//   "state_dict", "model_state_dict" or "model" of a training script's dict (a note says so),
//   `torch::save(model, file)` from C++, torch.jit.save;
//   a Hugging Face pytorch_model.bin, by name or in a folder without safetensors, also in shards
//   with an index.
// No code in a file is executed. Entries that are no tensors are skipped, and a note names them.
// Tensors may be views of each other with any strides; if the layout in the file differs from the
// parameter's, this rank's part of it needs memory once more. The archive's check sums are
// verified; each rank reads its share of the records for that.
// Errors: also those of opening the files: kCorruptData for files written before PyTorch 1.6; for
//   weights that are quantised, sparse, or have their neg or conj bit set; for records that are
//   damaged, compressed or encrypted; for another byte order; for tensors that exceed their
//   storage; and for names of functions that run code.
LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options = {});
// Loads weights from files that are open already (stored_weights.h).
LoadReport load_weights(Engine& engine, const StoredWeights& weights,
                        const LoadOptions& options = {});

struct SaveOptions {
  // Type in the file: float32, bfloat16, float16 or float64. Unset: float32.
  std::optional<c10::ScalarType> dtype;
  // Returns the name in the file; empty: the FQN. Different parameters need different names.
  std::function<std::string(std::string_view fqn)> stored_name{};
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};

// Writes all parameters into one file, which appears complete or not at all. Rank 0 writes while
// the others wait.
// Errors: IoError kCannotCreate, kIoError (disk full); InvalidArgument for a type that is not
//   floating, and for a name given twice.
void save_weights(Engine& engine, const std::filesystem::path& file,
                  const SaveOptions& options = {});
// Saves weights for callers that can handle a failure, e.g. by writing elsewhere: the outcome has
// the failure, and the file is unchanged then.
[[nodiscard]] Outcome try_to_save_weights(Engine& engine, const std::filesystem::path& file,
                                          const SaveOptions& options = {});

struct SaveFolderOptions {
  SaveOptions weights{};
  // As ShardOptions::max_shard_bytes.
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes all parameters into an existing folder, in the order of units: as model.safetensors, or as
// shards with their index. safetensors_folder_writer.h says what a concurrent reader sees.
// Errors: as save_weights.
void save_weights_folder(Engine& engine, const std::filesystem::path& folder,
                         const SaveFolderOptions& options = {});
// Saves weights as try_to_save_weights does. After a failure the folder has its earlier weights; if
// the failure came while files were renamed, it may have no usable ones.
[[nodiscard]] Outcome try_to_save_weights_folder(Engine& engine,
                                                 const std::filesystem::path& folder,
                                                 const SaveFolderOptions& options = {});

// Writes the optimizer's state into one file, which appears complete or not at all. By FQN it holds
// moments and counts of updates of the trained parameters (`FQN.exp_avg`, `FQN.exp_avg_sq` or
// `FQN.momentum_buffer`, and `FQN.step`), also of parameters frozen since their last update, but of
// no others that are frozen. Its metadata hold lr, steps(), the other options, settings of groups
// by name, and a digest of the current weights. The file does not depend on the number of ranks,
// strategy, offload or units. Moments are gathered one unit at a time; rank 0 writes while the
// others wait.
// Requires: parameters were unfrozen after zero_grad only.
// Errors: as save_weights.
void save_optimizer(Optimizer& optimizer, const std::filesystem::path& file);
[[nodiscard]] Outcome try_to_save_optimizer(Optimizer& optimizer,
                                            const std::filesystem::path& file);

struct OptimizerReport {
  // Options that differ from the saved optimizer's, and a missing digest of weights (earlier
  // versions wrote none), one line each; equal on all ranks.
  std::vector<std::string> notes;
};

struct LoadOptimizerOptions {
  // true: the engine's weights are deliberately not those of the saved state: saved in a lower
  // type, averaged, or changed since.
  bool beside_other_weights = false;
};

// Restores moments, counts of updates, steps(), lr and settings of groups, on any number of ranks;
// a rank reads its own intervals. Other options (betas, momentum, weight decay, groups) stay the
// program's, unlike in torch.optim's load_state_dict, and the report lists differences. Gradients
// are unchanged.
// Requires: the engine has the weights with which the state was saved, so load_weights comes first.
//   The parameters that are trained, or were before they were frozen, are those of the file: freeze
//   and unfreeze before.
// Errors: IoError kIoError if the file cannot be read; kCorruptData, with the names, for another
//   kind of file, another optimizer, weights of another step (with both steps as the optimizers
//   count them), parameters or tensors that are missing, unexpected or of another shape, and values
//   that are not finite.
OptimizerReport load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                               const LoadOptimizerOptions& options = {});
// Loads the state for callers that can continue without it. The whole file is checked before
// anything changes, so after a failure, which the outcome has, the optimizer is unchanged on every
// rank (unless a device fails while values are copied).
[[nodiscard]] Outcome try_to_load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                                            OptimizerReport& report,
                                            const LoadOptimizerOptions& options = {});

}  // namespace fsdp

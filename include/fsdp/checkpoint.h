// Loads and saves the weights of a live engine and the state of its optimizers, as safetensors
// files. Weights can also be loaded from files that PyTorch saved. No rank holds the whole model: a
// rank loads its own intervals of the parameters in chunks of at most 8 MiB, and saving gathers one
// unit at a time.
//
//   fsdp::load_weights(engine, "pretrained/");  // or a .safetensors file, or a .pt
//   …
//   fsdp::save_weights(engine, "out/model.safetensors", {.dtype = torch::kBFloat16});
//   fsdp::save_weights_folder(engine, "out", {.max_shard_bytes = 1 << 30});  // shards and index
//   fsdp::save_optimizer(optimizer, "out/optimizer.safetensors");
//   …
//   fsdp::load_optimizer(optimizer, "out/optimizer.safetensors");  // on any number of ranks
//
// The weights are the parameters that the engine shards; FQNs identify them. The caller itself must
// save the parameters that the engine ignores (Options::ignore). Buffers are loaded if a file
// contains them, but they are not saved. All functions are collective and must be called outside
// forward and backward. If one rank fails, the function throws on all ranks, and only one rank
// prints the error (agreement.h). If the weights were saved in float32 (the default) together with
// the optimizer state, a run that resumes on the same number of ranks computes bitwise identical
// steps. The program itself must restore the state of the random number generators (dropout).
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

// Options of load_weights. The options must be equal on all ranks. load_weights calls the functions
// below one at a time, on a separate thread.
struct LoadOptions {
  // Prefix that is removed from stored names before `parameter_name` is called: "module."
  // (DataParallel), "_orig_mod." (torch.compile), "model." (a wrapper). Names without the prefix
  // are unchanged. At least one name must have the prefix.
  std::string strip_prefix{};
  // Returns the name of the parameter for a stored tensor. If this function is unset, the stored
  // name is used.
  std::function<std::string(std::string_view stored)> parameter_name{};
  // Returns true if a file may contain a tensor of this name although the model has none. `name` is
  // the result of parameter_name. If this function is unset, no such tensor is allowed.
  std::function<bool(std::string_view name)> may_be_unused{};
  // Returns true if no file needs to contain this parameter. The load leaves a missing parameter
  // unchanged. If this function is unset, no parameter may be missing. If the files contain some
  // parameters of a module and lack others, load_weights throws, because a partly loaded module is
  // a mistake.
  std::function<bool(std::string_view fqn)> may_be_missing{};
  // A file that takes precedence over the other files, for example a file with a new head. May be
  // null.
  const SafetensorsFile* instead = nullptr;
};

// A report of load_weights. It lists the tensors and parameters that were renamed, taken from
// `instead`, skipped or not found. The report is equal on all ranks.
struct LoadReport {
  std::vector<std::string> renamed;   // stored names changed by strip_prefix or parameter_name
  std::vector<std::string> replaced;  // parameters in `instead` and in another file
  std::vector<std::string> unused;    // stored names that no parameter or buffer has
  std::vector<std::string> kept;      // parameters that no file has; the load leaves them unchanged
  std::vector<std::string> copies;    // stored names of equal copies of a tied parameter
  // Messages about replaced, unused, kept and copies, one line each. The program should print them
  // on one rank.
  std::vector<std::string> notes;
};

// Fills every rank's main shards from mapped files. A rank reads only its own intervals. F32, F16,
// BF16 and F64 values become float32. If a file contains a buffer, every rank loads this buffer in
// the buffer's own type; the load leaves other buffers unchanged. A parameter registered under
// several names (tied weights) is found under any of these names. If the files contain such a
// parameter several times with equal values, a note says so.
// Errors: IoError kCorruptData in these cases:
//   - a tensor is missing, unexpected or duplicate, or copies of a tied parameter differ (the error
//     names them);
//   - a tensor's shape differs from the parameter's, or its type is not allowed for weights (the
//     error names both shapes or types);
//   - a value of a parameter is not finite as float32 (the error names the tensor and
//     the element).
//   After an error, some shards may already have the file's values. Buffers are unchanged.
//   InvalidArgument if no name begins with strip_prefix.
LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options = {});
// Loads weights from a file or a folder. The format is detected from the content. Supported formats
// are:
//   - a safetensors file, or a folder of them (safetensors_folder.h);
//   - files of `torch.save(model.state_dict(), file)` in Python. The state dict may also be the
//     entry "state_dict", "model_state_dict" or "model" of a training script's dict (a note says
//     so);
//   - files of `torch::save(model, file)` in C++, and of torch.jit.save;
//   - a Hugging Face pytorch_model.bin, or a folder with this file or with its shards and their
//     index, but without safetensors files.
// No code in a file is executed. Entries that are not tensors are skipped, and a note names them.
// Stored tensors may share storage and may have any strides. If a stored tensor's memory order
// differs from the parameter's, each rank needs extra memory as large as its slice of the
// parameter. The check sums of the archive are verified: each rank reads and checks an equal share
// of the records.
// Errors: those of load_weights for safetensors files (above). Also IoError kCorruptData for a file
//   that is damaged or not supported:
//   - a file written before PyTorch 1.6, or in another byte order;
//   - weights that are quantised or sparse, or that have their neg or conj bit set;
//   - records that are damaged, compressed or encrypted;
//   - tensors that exceed their storage, or pickled functions that would run code.
LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options = {});
// Loads weights from files that are open already (stored_weights.h).
LoadReport load_weights(Engine& engine, const StoredWeights& weights,
                        const LoadOptions& options = {});

struct SaveOptions {
  // Type in the file: float32, bfloat16, float16 or float64. The default is float32.
  std::optional<c10::ScalarType> dtype;
  // Returns a parameter's name in the file. If this function is unset, the FQN is used. Different
  // parameters need different names.
  std::function<std::string(std::string_view fqn)> stored_name{};
  std::map<std::string, std::string> metadata{{"format", "pt"}};
};

// Writes all parameters into one file. The file appears complete or not at all. Rank 0 writes while
// the other ranks wait.
// Errors: IoError kCannotCreate if the file cannot be created; IoError kIoError if writing fails
//   (for example, disk full); InvalidArgument if the type is not floating, or if two parameters
//   have the same name.
void save_weights(Engine& engine, const std::filesystem::path& file,
                  const SaveOptions& options = {});
// Saves weights for callers that can handle a failure, for example by writing to another folder. If
// saving fails, the returned Outcome contains the error, and an existing file is unchanged.
[[nodiscard]] Outcome try_to_save_weights(Engine& engine, const std::filesystem::path& file,
                                          const SaveOptions& options = {});

struct SaveFolderOptions {
  SaveOptions weights{};
  // The most bytes of tensors in one file (ShardOptions::max_shard_bytes).
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes all parameters into an existing folder, in the order of units. The result is
// model.safetensors, or shards with their index. For processes that read the folder meanwhile, see
// safetensors_folder_writer.h.
// Errors: the same as save_weights.
void save_weights_folder(Engine& engine, const std::filesystem::path& folder,
                         const SaveFolderOptions& options = {});
// Saves weights as try_to_save_weights does. After most failures the folder still has its earlier
// weights. After a failure while files are renamed, the folder may have no usable weights.
[[nodiscard]] Outcome try_to_save_weights_folder(Engine& engine,
                                                 const std::filesystem::path& folder,
                                                 const SaveFolderOptions& options = {});

// Writes the optimizer's state into one file. The file appears complete or not at all. For each
// trained parameter the file contains the moments and the number of updates (`FQN.exp_avg`,
// `FQN.exp_avg_sq` or `FQN.momentum_buffer`, and `FQN.step`). A frozen parameter is included only
// if it was updated before it was frozen. The metadata contain lr, steps(), the other options, the
// settings of groups by name, and a digest of the current weights. The content does not depend on
// the number of ranks, the strategy, cpu_offload or the choice of units. Moments are gathered one
// unit at a time. Rank 0 writes while the other ranks wait.
// Requires: if the program unfroze parameters, it did so directly after a zero_grad.
// Errors: the same as save_weights.
void save_optimizer(Optimizer& optimizer, const std::filesystem::path& file);
[[nodiscard]] Outcome try_to_save_optimizer(Optimizer& optimizer,
                                            const std::filesystem::path& file);

struct OptimizerReport {
  // One line for each option of the optimizer that differs from the saved option. Also one line if
  // the file has no digest of the weights (earlier versions wrote none). The notes are equal on all
  // ranks.
  std::vector<std::string> notes;
};

struct LoadOptimizerOptions {
  // true: the state is loaded even if the engine's weights differ from the weights with which the
  // state was saved. Examples are weights that were saved in a lower precision, averaged, or
  // changed since then.
  bool beside_other_weights = false;
};

// Restores the moments, the numbers of updates, steps(), lr, and the rates and weight decays that
// were set for groups (OptimizerParamGroup). The number of ranks may differ from that of the saved
// run. A rank reads only its own intervals. All other options (betas, momentum, weight decay, the
// choice of groups) remain as the program has set them, unlike in torch.optim's load_state_dict.
// The report lists those that differ from the saved ones. Gradients are unchanged.
// Requires: the engine has the weights with which the state was saved, so call load_weights first.
//   The file must have the same set of parameters as this optimizer: those that are trained now,
//   and those that were trained before they were frozen. So freeze and unfreeze parameters before
//   this call.
// Errors: IoError kIoError if the file cannot be read. IoError kCorruptData in these cases, which
//   the error names:
//   - the file is of another kind or of another optimizer;
//   - the engine's weights are not those with which the state was saved (the message has the
//     steps() of the saved optimizer and of this one);
//   - parameters or tensors are missing, unexpected or of another shape;
//   - a value is not finite.
OptimizerReport load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                               const LoadOptimizerOptions& options = {});
// Loads the state for callers that can continue without the state. The whole file is checked before
// anything changes. After a failure the returned Outcome contains the error. The optimizer is then
// unchanged on every rank, unless a device failed while values were copied.
[[nodiscard]] Outcome try_to_load_optimizer(Optimizer& optimizer, const std::filesystem::path& file,
                                            OptimizerReport& report,
                                            const LoadOptimizerOptions& options = {});

}  // namespace fsdp

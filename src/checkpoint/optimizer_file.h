// The format of an optimizer's state. It is a safetensors file with the tensors
//
//   FQN.exp_avg, FQN.exp_avg_sq     (AdamW)          F32, the parameter's shape
//   FQN.momentum_buffer             (SGD with momentum)
//   FQN.step                                         I64, one element: number of updates
//
// for every parameter that the optimizer has trained, and with the metadata below. Each name ends
// with one of these words, so no two names can be equal. `weights` is the digest
// (weights_digest.h) of the engine's weights at the time of saving; older files have none. A file
// has version 2 if rates or decays of groups were set: "group.NAME.lr", "group.NAME.initial_lr"
// (the initial rate of schedulers), "group.NAME.weight_decay". Other files have version 1, which
// earlier versions of fsdp can read.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights_file.h"
#include "optim/optimizer_state.h"
#include "plan/shard_layout.h"

namespace fsdp {

inline constexpr std::string_view kStepTensor = "step";

std::string state_name(std::string_view fqn, std::string_view what);

// Returns the specification (shape and types) of a parameter for which an optimizer keeps state.
const ParameterSpec& spec_of(const Optimizer::State& state, const OptimizedParameter& parameter);

// Returns the metadata: format and version; the optimizer's name, lr, steps() and other options;
// the settings of its groups; and the digest of the weights.
std::map<std::string, std::string> optimizer_metadata(const Optimizer::State& state,
                                                      uint64_t weights);

// The metadata of a file, which concerns the whole optimizer.
struct OptimizerHead {
  int64_t steps = 0;
  double lr = 0;
  std::map<std::string, double> groups;  // Optimizer::State::group_values
  std::string weights;                   // the digest as text; empty if the file has none
  std::vector<std::string> notes;        // options that differ from this optimizer's
};
// Returns the digest as text, in the form used in metadata.
std::string digest_text(uint64_t weights);
// Reads the metadata.
// Errors: IoError kCorruptData if the file is of another kind, version or optimizer, if lr or steps
//   is not a valid number, or if the optimizer does not have one of the groups.
OptimizerHead read_optimizer_head(const SafetensorsFile& file, const Optimizer::State& state);

// Returns the number of updates that a parameter has had, read from `tensor`. Errors: IoError
// kCorruptData.
int64_t read_steps(const SafetensorsFile& file, const StoredTensor& tensor);

}  // namespace fsdp

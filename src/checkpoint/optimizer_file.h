// The format of an optimizer's state: a safetensors file of the tensors
//
//   FQN.exp_avg, FQN.exp_avg_sq     (AdamW)          F32, the parameter's shape
//   FQN.momentum_buffer             (SGD with momentum)
//   FQN.step                                         I64, one element: updates it has seen
//
// for every parameter that the optimizer has trained, and the metadata below. The last part of a
// name is one of these words, so that no two names can collide. `weights` is the digest
// (weights_digest.h) of the weights beside which the state was saved; older files have none. A file
// is of version 2 if rates or decays of groups were set: "group.NAME.lr", "group.NAME.initial_lr"
// (at which schedulers began), "group.NAME.weight_decay". Others are of version 1, which earlier
// programs read.
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

// Returns the specification of a parameter that an optimizer keeps state for.
const ParameterSpec& spec_of(const Optimizer::State& state, const OptimizedParameter& parameter);

// Returns the metadata: format and version; the optimizer's name, lr, steps() and other options;
// the settings of its groups; the digest of the weights.
std::map<std::string, std::string> optimizer_metadata(const Optimizer::State& state,
                                                      uint64_t weights);

// The metadata of a file, which concerns the whole optimizer.
struct OptimizerHead {
  int64_t steps = 0;
  double lr = 0;
  std::map<std::string, double> groups;  // Optimizer::State::group_values
  std::string weights;                   // the digest's text; empty in a file that has none
  std::vector<std::string> notes;        // options that differ from this optimizer's
};
// Returns the digest as metadata spells it.
std::string digest_text(uint64_t weights);
// Reads the metadata. Errors: IoError kCorruptData for a file of another kind, an unknown version,
// another optimizer, an lr or steps that are no such numbers, or a group that the optimizer does
// not have.
OptimizerHead read_optimizer_head(const SafetensorsFile& file, const Optimizer::State& state);

// Returns the number of updates that a parameter has had. Errors: IoError kCorruptData.
int64_t read_steps(const SafetensorsFile& file, const StoredTensor& tensor);

}  // namespace fsdp

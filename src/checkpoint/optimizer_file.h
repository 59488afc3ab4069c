// What a file of an optimizer's state holds: a safetensors file of the tensors
//
//   FQN.exp_avg, FQN.exp_avg_sq     (AdamW)          F32, the parameter's shape
//   FQN.momentum_buffer             (SGD with momentum)
//   FQN.step                                         I64, one element: updates it has seen
//
// of every parameter that the optimizer has trained, and the metadata below. The last part of a
// name says what it is, so that no two can collide. `weights` is the digest (weights_digest.h) of
// the weights beside which the state was saved; files before it have none. A file is of version 2
// if rates or decays of groups were set: "group.NAME.lr", "group.NAME.initial_lr" (where schedulers
// began), "group.NAME.weight_decay". Others are of version 1, which earlier programs read.
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

// Of a parameter that an optimizer keeps state for.
const ParameterSpec& spec_of(const Optimizer::State& state, const OptimizedParameter& parameter);

// Format and version; which optimizer, its lr and steps(), its other options, what was set of its
// groups, and the weights' digest.
std::map<std::string, std::string> optimizer_metadata(const Optimizer::State& state,
                                                      uint64_t weights);

// What a file says of the whole optimizer.
struct OptimizerHead {
  int64_t steps = 0;
  double lr = 0;
  std::map<std::string, double> groups;  // Optimizer::State::group_values
  std::string weights;                   // the digest's text; empty in a file that has none
  std::vector<std::string> notes;        // options that are others here
};
// As metadata has it.
std::string digest_text(uint64_t weights);
// Errors: IoError kCorruptData for a file of something else, of a version that is not known, of
//   another optimizer, whose lr or steps are none, or with a group that the optimizer has not.
OptimizerHead read_optimizer_head(const SafetensorsFile& file, const Optimizer::State& state);

// The updates that a parameter has seen. Errors: IoError kCorruptData.
int64_t read_steps(const SafetensorsFile& file, const StoredTensor& tensor);

}  // namespace fsdp

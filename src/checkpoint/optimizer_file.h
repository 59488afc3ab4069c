// Reads and writes an optimizer's state. The format is a safetensors file that has these tensors
// for every parameter that the optimizer has trained:
// - FQN.exp_avg and FQN.exp_avg_sq (AdamW) have type F32 and the shape of the parameter.
// - FQN.momentum_buffer (SGD with momentum) has type F32 and the shape of the parameter.
// - If the moment is quantized (AdamW8bit), FQN.exp_avg has type U8: the codes, in the parameter's
//   memory order. FQN.exp_avg_absmax has type F32 and one value per block. If the memory order is
//   not row-major, the metadata have "strides.FQN".
// - FQN.step has type I64 and one element, the number of the parameter's updates.
//
// Each name ends with one of these words after its last dot, so no two tensors have the same name.
// optimizer_metadata describes the metadata. The digest among them (weights_digest.h) is that of
// the engine's weights at the time of saving; files of earlier versions of fsdp have no digest. If
// the program has set a learning rate or weight decay for a parameter group, the file has version 2
// and the metadata "group.NAME.lr", "group.NAME.initial_lr" (the initial rate of schedulers) and
// "group.NAME.weight_decay". Other files have version 1, which earlier versions of fsdp can read.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/weights_file.h"
#include "optim/optimizer_state.h"
#include "plan/shard_layout.h"

namespace fsdp {

inline constexpr std::string_view kStepTensor = "step";

std::string state_name(std::string_view fqn, std::string_view what);
// Returns the name of the absmax values of a quantized moment: "exp_avg_absmax".
std::string absmax_name(std::string_view moment);
// Returns the key and the value of the metadata that describe the memory order of a parameter.
// The value is empty if the order is row-major.
std::pair<std::string, std::string> memory_order_of(const ParameterSpec& parameter);

// Returns the specification (shape and types) of a parameter for which an optimizer keeps state.
const ParameterSpec& spec_of(const Optimizer::State& state, const OptimizedParameter& parameter);

// Returns the metadata: format and version; the optimizer's name, lr, steps() and other options;
// the settings of its groups; and the digest of the weights.
std::map<std::string, std::string> optimizer_metadata(const Optimizer::State& state,
                                                      uint64_t weights);

// The metadata of a file. They concern the whole optimizer.
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
// Errors: IoError kCorruptData if the file is not an optimizer's state, has an unknown version, or
//   was saved by another type of optimizer; if lr or steps is not a valid number; or if the
//   optimizer does not have one of the file's groups.
OptimizerHead read_optimizer_head(const SafetensorsFile& file, const Optimizer::State& state);

// Returns the number of updates that a parameter has had, read from `tensor`. Errors: IoError
// kCorruptData if `tensor` is not one I64 value of 0 or more.
int64_t read_steps(const SafetensorsFile& file, const StoredTensor& tensor);

}  // namespace fsdp

// The state of LibTorch's optimizers on Engine::parameters(), as a part of a training state.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/training_state_parts.h"

namespace fsdp {

// Returns the object of torch::optim::Adam, AdamW or SGD. Its tensors are NAME/exp_avg/FQN and so
// on, with the same names and elements as those of fsdp's optimizers. Its values are the options of
// the groups ("group/0/lr") and the number of updates of each parameter ("updates" for most
// parameters, "updates/FQN" for a parameter with another number).
// Errors: those of TrainingState::add.
std::unique_ptr<StateObject> make_torch_optimizer_object(std::string name,
                                                         torch::optim::Optimizer& optimizer,
                                                         const TrainingState::Parts& state);

}  // namespace fsdp

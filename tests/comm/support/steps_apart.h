// Issues the collectives of training steps, where one rank differs from the others.
#pragma once

#include <fsdp/mesh.h>

#include <array>
#include <string_view>

#include "support/cpu_streams.h"

namespace fsdp::testing {

inline constexpr std::array<std::string_view, 4> kWaysApart{"skip", "freeze", "micro-batches",
                                                            "exception"};

// Runs three steps of gathers and reductions on the mesh's streams, numbered by its collective
// sequence. In the second step rank `odd` does not unshard the last unit (skip), does not reduce it
// (freeze), runs one micro-batch instead of two (micro-batches), or throws during backward, catches
// the error and continues with the next step (exception). Throws the error that follows.
void step_apart(const Mesh& mesh, std::string_view way, int odd, testing::CpuStreams kind);

}  // namespace fsdp::testing

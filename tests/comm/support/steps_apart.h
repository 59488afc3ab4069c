// Issues the collectives of training steps in which one rank differs from the others.
#pragma once

#include <fsdp/mesh.h>

#include <array>
#include <string_view>

#include "support/cpu_streams.h"

namespace fsdp::testing {

inline constexpr std::array<std::string_view, 4> kWaysApart{"skip", "freeze", "micro-batches",
                                                            "exception"};

// Runs three steps of gathers and reductions on the mesh's streams. The mesh's collective sequence
// numbers them. In the second step rank `odd` differs. `way` says how: it does not unshard the last
// unit (skip); it does not reduce the last unit (freeze); it runs one micro-batch instead of two
// (micro-batches); or it throws during backward, catches the error and continues with the next step
// (exception). Throws the error that this causes.
void step_apart(const Mesh& mesh, std::string_view way, int odd, testing::CpuStreams kind);

}  // namespace fsdp::testing

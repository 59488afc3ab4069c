// Steps as training issues them, on one rank otherwise than on the rest.
#pragma once

#include <fsdp/mesh.h>

#include <array>
#include <string_view>

#include "support/cpu_streams.h"

namespace fsdp::testing {

inline constexpr std::array<std::string_view, 4> kWaysApart{"skip", "freeze", "micro-batches",
                                                            "exception"};

// Three steps of gathers and reductions on the mesh's streams, with numbers of its host order. In
// the second step rank `odd` does not unshard the last unit (skip), does not reduce it (freeze),
// runs one micro-batch instead of two (micro-batches), or throws amid backward, catches it and goes
// on with the next step (exception). Ends by the error that follows.
void step_apart(const Mesh& mesh, std::string_view way, int odd, testing::CpuStreams kind);

}  // namespace fsdp::testing

// The modes of a program that acts as one rank of a test with real processes.
//   sweep LARGE               every collective, exact values
//   sweep-groups LARGE        the same on the groups of even and odd ranks, and on all ranks at
//                             the same time
//   steps N [FAULT RANK STEP] N steps of collectives; RANK does FAULT at STEP; $TEST_BEGUN names a
//                             file that the first step creates
//   mismatch WHAT RANK        RANK issues another collective than the others
//   apart WAY RANK            RANK's second step is another one (steps_apart.h)
//   stray-write               each rank writes into its view of its neighbour's memory
//   disagree RANK             RANK's configuration differs
//   parts [FAULT RANK]        rounds in parts of the mesh, then on all ranks; RANK does FAULT, and
//                             the others continue until they notice
//   bits NUMEL                prints a hash of reductions, the same on all ranks
//   linger [TOKEN]            waits for a signal; TOKEN makes it findable
#pragma once

#include <fsdp/mesh.h>
#include <fsdp/program.h>

#include <string>
#include <vector>

namespace fsdp::testing {

// Runs the mode that `arguments` name, and returns the program's exit code. Sweeps and steps use
// the communicators of all ranks, which may be on several hosts.
int run_mode(const Mesh& mesh, ErrorPlace& place, const std::vector<std::string>& arguments);
// Returns the options of the mesh. $TEST_TIMEOUT_MS sets its time-out.
MeshOptions mesh_options();
// Prevents core files, because processes die on purpose.
void write_no_core_files();

}  // namespace fsdp::testing

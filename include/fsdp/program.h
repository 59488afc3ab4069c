// Runs the body of a program's main function: makes the mesh, prints errors, returns the exit code.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <functional>

namespace fsdp {

// The body of a program. It returns the exit code. If it updates `place.step`, error lines name the
// step.
using ProgramBody = std::function<int(const Mesh& mesh, ErrorPlace& place)>;

// Makes the mesh from the environment and runs `body` on the mesh. Another version, in
// run_options.h, reads a command line.
//   int main() { return fsdp::run_program([](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { … }); }
// Effects: if `body` throws, prints one error line on stderr and returns an exit code
//   (docs/errors.md). The other ranks are notified, so that they stop within seconds. Under
//   torchrun the error is also written to the agent's error file. For RefusedElsewhere no line is
//   printed, because the rank that failed has printed the error. An uncaught exception elsewhere
//   (in a thread or a destructor) also prints an error line, and ends the process with SIGABRT. If
//   a rank is slow, a warning line names it. If stderr is closed or full, lines are lost, but the
//   exit code is the same. The library prints nothing else, except one line when it ends a process
//   after MeshEvent::Kind::kStuck.
// Effects on the process: if a standard stream is closed, opens /dev/null in its place. Sets the
//   terminate handler. Ignores SIGXFSZ, so that a write beyond the file size limit fails with an
//   error. Sets ONEDNN_MAX_CPU_ISA where LibTorch would otherwise crash (docs/errors.md, "Illegal
//   instruction").
int run_program(const ProgramBody& body, MeshOptions options = {});

}  // namespace fsdp

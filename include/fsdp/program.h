// Runs the body of a program's main function: makes the mesh, prints errors, returns the exit code.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <functional>

namespace fsdp {

// The body of a program. It returns the exit code. If it keeps `place.step` up to date, error lines
// name the step.
using ProgramBody = std::function<int(const Mesh& mesh, ErrorPlace& place)>;

// Makes the mesh from the environment and runs `body` on it. run_options.h has a version that reads
// a command line.
//   int main() { return fsdp::run_program([](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { … }); }
// Effects: an exception of `body` becomes one error line on stderr and its exit code
//   (docs/errors.md), and the other ranks are notified, so that they stop within seconds. Under
//   torchrun it is written to the agent's error file too. RefusedElsewhere prints no line, because
//   the rank that failed has printed it. An uncaught exception elsewhere (in a thread or a
//   destructor) becomes an error line and SIGABRT. A slow rank is named in a warning line. If
//   stderr is closed or full, the line is lost and the code is the same. The library prints nothing
//   else, except a line when it ends a process after MeshEvent::Kind::kStuck.
// Effects on the process: opens closed standard streams on /dev/null, sets the terminate handler,
//   ignores SIGXFSZ (a write beyond the file size limit then fails with an error), and sets
//   ONEDNN_MAX_CPU_ISA where LibTorch would otherwise die (docs/errors.md, "Illegal instruction").
int run_program(const ProgramBody& body, MeshOptions options = {});

}  // namespace fsdp

// The frame of a program's main function: mesh in, exit code out, errors as one line.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <functional>

namespace fsdp {

// What a program does with its mesh; returns the exit code. It may keep `place.step` up to date, so
// that an error line names the step.
using ProgramBody = std::function<int(const Mesh& mesh, ErrorPlace& place)>;

// Makes the mesh of the environment and runs `body` on it.
// Effects: an exception ends as one error line on stderr and its exit code (docs/errors.md); the
//   other ranks are told, so that they stop within seconds (RefusedElsewhere ends without a line:
//   the rank that refused has printed it); under torchrun the agent's error file
//   is written. An exception that nobody can catch ends as that line and SIGABRT. A rank that keeps
//   the others waiting is named in a warning line. This is the only function of the library that
//   prints; where stderr is closed or full the
//   line is lost and the code is the same. It opens standard streams that are closed on /dev/null,
//   sets the process's terminate handler, ignores SIGXFSZ (a write beyond the file size
//   limit is an error then), and sets ONEDNN_MAX_CPU_ISA where LibTorch would die without it
//   (docs/errors.md, "Illegal instruction").
// int main() { return fsdp::run_program([](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) { … }); }
// With a command line: fsdp/run_options.h.
int run_program(const ProgramBody& body, MeshOptions options = {});

}  // namespace fsdp

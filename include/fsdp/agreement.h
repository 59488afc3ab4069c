// Functions for work that may take long or fail on one rank, such as reading or writing files. All
// ranks wait for it and get the same outcome.
//
//   fsdp::run_or_throw_on_all_ranks(mesh, "reading the questions",
//                                   [&] { questions = read(file); });
//
// Without them a rank whose disk fails throws alone, and the other ranks report that it left.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>
#include <functional>
#include <string_view>

namespace fsdp {

// An error without a message of its own: another rank reports why the job ends, and this rank ends
// with the same code. run_program prints nothing for it.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(ExitCode code);
};

// The outcome of work on all ranks. It is equal on every rank, except for `mine`.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::exception_ptr mine;  // exception of the lowest failing rank; null on all other ranks

  bool failed() const { return code != ExitCode::kOk; }
};

// Runs `work` on a second thread and returns when `work` has ended on every rank. Meanwhile the
// calling thread answers the other ranks, so a slow disk does not count as a late rank. A rank that
// works longer than five seconds warns once (MeshOptions::on_event), with `what` ("writing the
// model").
// Requires: collective; outside forward and backward; `work` issues no collective of the control
//   communicator: no function of this header, no Mesh::sum, mean, max or gather.
// Errors: CommError as in any collective, after this rank's own work has ended. Exceptions of
//   `work` are in the outcome.
[[nodiscard]] Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what,
                                       const std::function<void()>& work);

// Returns if no rank failed. Collective.
// Errors: on the lowest failing rank its own exception; on all others RefusedElsewhere, once that
//   rank has notified the mesh (run_program does so after it has printed the error).
void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome);

// Calls run_on_all_ranks, then throw_on_all_ranks: a failure on any rank ends all ranks, and one of
// them reports it.
void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work);

}  // namespace fsdp

// Functions for work that may be slow or may fail on one rank, such as reading or writing files.
// All ranks wait for the work and get the same outcome.
//
//   fsdp::run_or_throw_on_all_ranks(mesh, "reading the questions",
//                                   [&] { questions = read(file); });
//
// Without these functions, a rank whose disk fails throws alone, and the other ranks only report
// that this rank left.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>
#include <functional>
#include <string_view>

namespace fsdp {

// An error without a message of its own. Another rank reports why the job ends, and this rank exits
// with the same code. run_program prints nothing for this error.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(ExitCode code);
};

// The outcome of work on all ranks. All fields are equal on every rank, except `mine`.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::exception_ptr mine;  // exception of the lowest failing rank; null on all other ranks

  bool failed() const { return code != ExitCode::kOk; }
};

// Runs `work` on a second thread and returns when `work` has ended on every rank. Meanwhile the
// calling thread answers the other ranks, so a slow disk does not count as a late rank. If the
// work of a rank needs more than five seconds, that rank warns once (MeshOptions::on_event). The
// warning contains `what` ("writing the model").
// Requires: collective; outside forward and backward. `work` must not call a function of this
//   header, nor Mesh::sum, mean, max or gather, because they use the same control communicator.
// Errors: CommError as in any collective, thrown after this rank's own work has ended.
//   Exceptions of `work` are stored in the outcome.
[[nodiscard]] Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what,
                                       const std::function<void()>& work);

// Throws if a rank failed; returns otherwise. Collective.
// Errors: the lowest failing rank rethrows its own exception. All other ranks throw
//   RefusedElsewhere after that rank has notified the mesh. run_program notifies the mesh after it
//   has printed the error.
void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome);

// Calls run_on_all_ranks, then throw_on_all_ranks. A failure on any rank ends all ranks, and one of
// them reports it.
void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work);

}  // namespace fsdp

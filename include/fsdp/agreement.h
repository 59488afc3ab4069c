// Functions for work that may be slow or may fail on one rank, such as reading or writing files.
// All ranks wait for the work and get the same outcome.
//
//   fsdp::run_or_throw_on_all_ranks(mesh, "reading the questions",
//                                   [&] { questions = read(file); });
//
// Without these functions, only the rank whose disk fails throws the cause. The other ranks report
// only that the failed rank has left the job.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>
#include <functional>
#include <string_view>

namespace fsdp {

// An error that ends this rank because another rank failed. The failed rank reports the cause, and
// this rank exits with the failed rank's exit code. run_program prints nothing for this error.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(ExitCode code);
};

// The outcome of work on all ranks. `code` is equal on all ranks. `mine` is set on one rank only.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::exception_ptr mine;  // the exception, on the lowest failing rank; null on all other ranks
  // On every rank: true if no rank failed, and `flag` was true on a rank after its work.
  bool flagged = false;

  bool failed() const { return code != ExitCode::kOk; }
};

// Runs `work` on a second thread and returns when `work` has ended on every rank. Meanwhile the
// calling threads of all ranks run one small collective after the other, so a slow disk does not
// cause a time-out. If `work` takes more than five seconds on a rank, this rank warns once
// (MeshOptions::on_event). The warning contains `what` ("writing the model").
// Requires: collective; outside forward and backward. `work` must not call a function of this
//   header, nor Mesh::sum, mean, max or gather, because this function uses the same communicator.
// Errors: CommError as in any collective. It is thrown after this rank's own work has ended.
//   Exceptions that `work` throws are stored in the outcome and not rethrown.
// `flag`: a value that `work` may set and that all ranks get to know (Outcome::flagged); or null.
[[nodiscard]] Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what,
                                       const std::function<void()>& work,
                                       const bool* flag = nullptr);

// Throws on every rank if `outcome`, the result of run_on_all_ranks, contains a failure.
// Collective.
// Errors: the failing rank with the lowest number rethrows its own exception. Each other rank waits
//   until that rank has called Mesh::abort, and then throws RefusedElsewhere. run_program calls
//   Mesh::abort after it has printed the error.
void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome);

// Calls run_on_all_ranks, then throw_on_all_ranks. If any rank fails, this function throws on all
// ranks, and only one rank prints the error.
void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work);

}  // namespace fsdp

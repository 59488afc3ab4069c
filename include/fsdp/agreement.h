// Work that may take long or fail on one rank (reading files, writing results): all ranks wait for
// it, and end alike.
//
//   fsdp::run_or_throw_on_all_ranks(mesh, "reading the questions", [&] { questions = read(file); });
//
// Without it the rank whose disk fails throws alone, and the others report a rank that has left.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>
#include <functional>
#include <string_view>

namespace fsdp {

// Another rank says why the job ends: this one leaves with the same code and without a word.
// run_program does that for whoever lets it pass.
class RefusedElsewhere : public Error {
 public:
  explicit RefusedElsewhere(ExitCode code);
};

// How work of all ranks went: alike on every rank, but for `mine`.
struct Outcome {
  ExitCode code = ExitCode::kOk;
  std::exception_ptr mine;  // what the lowest failing rank threw, on that rank alone

  bool failed() const { return code != ExitCode::kOk; }
};

// Runs `work` on a thread beside this one and returns when every rank's has ended, however long
// that takes: meanwhile this thread answers the other ranks, so that a slow disk is not a rank
// that is late. A rank that works for more than five seconds says so once (MeshOptions::on_event)
// with `what` ("writing the model").
// Requires: collective, outside forward and backward; `work` issues no collective of the control
//   communicator, so none of this header, and no Mesh::sum, mean, max or gather.
// Errors: CommError as any collective, once this rank's own work has ended. What `work` throws is
//   in the outcome.
[[nodiscard]] Outcome run_on_all_ranks(const Mesh& mesh, std::string_view what,
                                       const std::function<void()>& work);

// Returns if nothing failed. Collective.
// Errors: what the lowest failing rank threw, on that rank; RefusedElsewhere on all others, once
//   that rank has told the mesh (run_program does, after it has printed the error).
void throw_on_all_ranks(const Mesh& mesh, const Outcome& outcome);

// Both: what is wrong on any rank ends all ranks, and one of them says it.
void run_or_throw_on_all_ranks(const Mesh& mesh, std::string_view what,
                               const std::function<void()>& work);

}  // namespace fsdp

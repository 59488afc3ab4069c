// Work that may take long or fail on one rank: all ranks wait for it, and end alike.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>
#include <functional>
#include <string_view>

namespace bert_qa {

// Another rank says why this run ends: leave with `code` and without a word.
struct SaidElsewhere {
  fsdp::ExitCode code;
};

// How work of all ranks went: alike on every rank, but for `mine`.
struct Outcome {
  fsdp::ExitCode code = fsdp::ExitCode::kOk;
  std::exception_ptr mine;  // what the lowest failing rank threw, on that rank alone

  bool failed() const { return code != fsdp::ExitCode::kOk; }
};

// Runs `work` on a thread beside this one and returns when every rank's has ended, however long
// that takes: meanwhile this thread answers the other ranks, so that a slow disk is not a rank
// that is late. Who is waited for says so in a line of stdout, with `what` ("writing the model").
// Requires: collective; `work` issues no collective of the control communicator.
// Errors: CommError as any collective, once this rank's own work has ended.
Outcome work_together(const fsdp::Mesh& mesh, std::string_view what,
                      const std::function<void()>& work);

// Returns if nothing failed. Collective.
// Errors: what the lowest failing rank threw, on that rank; SaidElsewhere on all others, once that
//   rank has spoken and told the mesh (fsdp::run_program does both).
void end_together(const fsdp::Mesh& mesh, const Outcome& outcome);

// Both: what is wrong on any rank ends all ranks, and one of them says it.
inline void refuse_together(const fsdp::Mesh& mesh, std::string_view what,
                            const std::function<void()>& work) {
  end_together(mesh, work_together(mesh, what, work));
}

}  // namespace bert_qa

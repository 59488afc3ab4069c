// Refusing a run together: what is wrong on any rank ends all ranks, and one of them says it.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>

#include "rank_values.h"

namespace bert_qa {

// Another rank says why this run ends: leave with `code` and without a word.
struct SaidElsewhere {
  fsdp::ExitCode code;
};

// Runs `check` on every rank. Collective.
// Errors: what the lowest failing rank threw, on that rank; SaidElsewhere on all others, once that
//   rank has spoken and told the mesh (fsdp::run_program does both).
template <class Check>
void refuse_together(const fsdp::Mesh& mesh, Check&& check) {
  constexpr int64_t kCodes = 256;
  std::exception_ptr mine;
  int64_t verdict = 0;  // the largest wins: (ranks from the end) · kCodes + code
  try {
    check();
  } catch (const std::exception& error) {
    mine = std::current_exception();
    verdict = (mesh.world_size() - mesh.rank()) * kCodes +
              static_cast<int64_t>(fsdp::exit_code_of(error));
  }
  const int64_t agreed = max_over_ranks(mesh, verdict, "checks");
  if (agreed == 0) return;
  // The speaker may end the mesh only when all know the verdict; the others leave after it, so that
  // a launcher sees it fail first.
  if (agreed == verdict) {
    max_over_ranks(mesh, 0, "verdict");
    std::rethrow_exception(mine);
  }
  try {
    max_over_ranks(mesh, 0, "verdict");
    max_over_ranks(mesh, 0, "farewell");  // the speaker does not come
  } catch (const fsdp::CommError&) {
  }
  throw SaidElsewhere{static_cast<fsdp::ExitCode>(agreed % kCodes)};
}

}  // namespace bert_qa

// Refusing a run together: what is wrong on any rank ends all ranks, and one of them says it.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include <exception>

#include "rank_values.h"

namespace bert_qa {

// Another rank says why this run ends; leave with `code` and without a word.
struct SaidElsewhere {
  fsdp::ExitCode code;
};

// Runs `check` on every rank. Collective.
// Errors: what the lowest failing rank threw, on that rank; SaidElsewhere on all others.
template <class Check>
void refuse_together(const fsdp::Mesh& mesh, Check&& check) {
  std::exception_ptr mine;
  fsdp::ExitCode code = fsdp::ExitCode::kOk;
  try {
    check();
  } catch (const std::exception& error) {
    mine = std::current_exception();
    code = fsdp::exit_code_of(error);
  }
  const int64_t speaker =
      mesh.world_size() -
      max_over_ranks(mesh, mine ? mesh.world_size() - mesh.rank() : 0, "checks");
  if (speaker == mesh.world_size()) return;
  const bool speaks = speaker == mesh.rank();
  const int64_t agreed = max_over_ranks(mesh, speaks ? static_cast<int64_t>(code) : 0, "code");
  if (speaks) std::rethrow_exception(mine);
  throw SaidElsewhere{static_cast<fsdp::ExitCode>(agreed)};
}

}  // namespace bert_qa

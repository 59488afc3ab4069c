// Words the failure of a periodic save.
#pragma once

#include <cstdint>
#include <string>

#include "fsdp/agreement.h"
#include "fsdp/error.h"

namespace fsdp {

struct SaveFailure {
  int64_t step = 0;           // of the checkpoint that was not saved
  int64_t whole_step = -1;    // of the newest whole checkpoint; -1: none
  int64_t missing_bytes = 0;  // that must become free for one more checkpoint; 0: not known
};

// Returns the text of the error of this rank. Requires: `outcome.mine` is set.
std::string text_of(const Outcome& outcome);

// Returns the text of the error that the outcome has, with the step that was not saved, and a hint
// with the bytes to free and the checkpoint that is whole.
// Requires: `outcome.mine` is an fsdp::Error.
ErrorText save_failure_text(const Outcome& outcome, const SaveFailure& failure);

}  // namespace fsdp

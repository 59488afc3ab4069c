#include "fsdp/checkpoint_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr int64_t kLeastKept = 2;

[[noreturn]] void refuse_option(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .hint = std::move(hint)}, ExitCode::kUsage);
}

}  // namespace

void CheckpointOptions::require_valid() const {
  if (save_steps < 0) {
    refuse_option(fmt::format("--save-steps is {}", save_steps), "use 0 or more steps");
  }
  if (save_total_limit != 0 && save_total_limit < kLeastKept) {
    refuse_option(fmt::format("--save-total-limit is {}", save_total_limit),
                  "keep at least 2 checkpoints, because the newest one may be damaged; 0 keeps "
                  "all");
  }
  if (save_memory_steps < 0) {
    refuse_option(fmt::format("--save-memory-steps is {}", save_memory_steps),
                  "use 0 or more steps");
  }
  if (!folder.empty()) return;
  if (save_memory_steps > 0) {
    refuse_option("--save-memory-steps has no folder", "add --save-dir FOLDER");
  }
  if (save_steps > 0) refuse_option("--save-steps has no folder", "add --save-dir FOLDER");
  if (resume == "auto") refuse_option("--resume auto has no folder", "add --save-dir FOLDER");
}

int64_t CheckpointOptions::most_at_once() const {
  return std::max<int64_t>(save_total_limit, 1) + 1;
}

std::string CheckpointOptions::describe(const CheckpointSize& size) const {
  std::string text = fmt::format("a checkpoint takes {} on disk ({} from rank 0), ",
                                 format_bytes(size.most_bytes), format_bytes(size.rank_bytes));
  text += save_total_limit == 0 ? "all are kept"
                                : fmt::format("at most {} exist at once ({})", most_at_once(),
                                              format_bytes(most_at_once() * size.most_bytes));
  if (save_steps > 0) {
    text += fmt::format(", one every {} {} in {}", save_steps, save_steps == 1 ? "step" : "steps",
                        folder.string());
  }
  if (const int64_t copies = state_copies(); copies > 0) {
    text += fmt::format("; {} of rank 0's part {} {} of memory",
                        copies == 1 ? "a copy" : fmt::format("{} copies", copies),
                        copies == 1 ? "takes" : "take", format_bytes(copies * size.rank_bytes));
  }
  return text;
}

}  // namespace fsdp

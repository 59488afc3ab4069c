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
  if (!folder.empty()) return;
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
  if (save_steps == 0) return text;
  return text + fmt::format(", one every {} {} in {}", save_steps,
                            save_steps == 1 ? "step" : "steps", folder.string());
}

}  // namespace fsdp

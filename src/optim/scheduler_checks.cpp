#include "optim/scheduler_checks.h"

#include <fmt/format.h>

#include <string>

#include "fsdp/error.h"
#include "optim/optimizer_state.h"

namespace fsdp {
namespace {

// Returns the first name that is in `from` but not in `other`; empty if there is none.
std::string name_missing_in(const LRSchedulerState& other, const LRSchedulerState& from) {
  for (const auto& [name, value] : from) {
    if (!other.contains(name)) return name;
  }
  return "";
}

}  // namespace

void require_option(bool holds, std::string_view owner, std::string_view option, double value,
                    std::string_view allowed) {
  if (holds) return;
  throw InvalidArgument(
      {.what = fmt::format("{}: {} is {}", owner, option, value), .hint = std::string(allowed)});
}

std::shared_ptr<const TrainingPlace> place_of_scheduler(Optimizer& optimizer,
                                                        std::string_view name) {
  return std::make_shared<const TrainingPlace>(state_of(optimizer).engine.training,
                                               TrainingKind::kScheduler, std::string(name));
}

void require_same_names(const LRSchedulerState& own, const LRSchedulerState& given) {
  const std::string missing = name_missing_in(given, own);
  const std::string unknown = name_missing_in(own, given);
  if (missing.empty() && unknown.empty()) return;
  throw InvalidArgument(
      {.what = missing.empty()
                   ? fmt::format("a scheduler's state has the unknown entry '{}'", unknown)
                   : fmt::format("a scheduler's state lacks the entry '{}'", missing),
       .hint = "load a state() of the same kind of scheduler"});
}

}  // namespace fsdp

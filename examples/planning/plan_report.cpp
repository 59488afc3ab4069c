#include "planning/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "named_optimizer.h"
#include "plan/placement.h"
#include "planning/time_report.h"

namespace planning {
namespace {

using fsdp::format_bytes;

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string parameters_text(int64_t count) {
  if (count < 1'000'000) return fmt::format("{} parameters", count);
  if (count < 1'000'000'000) return fmt::format("{:.1f} million parameters", count / 1e6);
  return fmt::format("{:.2f} billion parameters", count / 1e9);
}

std::string overlap_text(const PlanSettings& settings, const KnownModel& model,
                         const fsdp::StepPlan& plan) {
  const int64_t tokens = settings.batch.sequences * settings.batch.length;
  const double operations =
      operations_per_token(settings, model, plan.parameters, settings.run.engine.recompute);
  const double per_token = operations / (settings.teraflops_per_second * 1e12);
  const double computing = per_token * static_cast<double>(tokens);
  const auto bytes = static_cast<double>(plan.traffic.total_bytes());
  const double sending = bytes / (settings.gigabytes_per_second * 1e9);
  std::string text = fmt::format("computing takes {} ({:.3g} GFLOP a token), sending {}\n",
                                 seconds_text(computing), operations / 1e9, seconds_text(sending));
  if (settings.on_gpus()) {
    text += fmt::format("at {} GB/s: right if nccl-tests print this busbw, not a card's rate\n",
                        settings.gigabytes_per_second);
  }
  if (sending <= computing) return text + "communication can hide behind compute\n";
  return text + fmt::format("communication cannot hide: it could from {:.0f} tokens a rank on\n",
                            std::ceil(sending / per_token));
}

std::string checkpoint_text(const PlanSettings& settings, const fsdp::StepPlan& plan) {
  if (!plan.checkpoint) return {};
  const std::string text = settings.run.checkpoints.describe(*plan.checkpoint);
  return fmt::format("{}\n", fmt::join(fsdp::wrapped(text, 80), "\n"));
}

// Compares the memory that the step needs with the available memory.
std::string needs_text(const PlanSettings& settings, const Room& needed) {
  const Room room = settings.room();
  const auto enough = [](int64_t bytes, int64_t of) {
    return fmt::format("{} {} enough\n", format_bytes(of), bytes <= of ? "are" : "are not");
  };
  std::string text;
  if (room.device > 0) {
    text += fmt::format("a device must have {} for it: {}", format_bytes(needed.device),
                        enough(needed.device, room.device));
  }
  if (settings.memory_bytes > 0 && settings.reserve() > 0) {
    text += fmt::format("{} of {} are left to the context, NCCL and the allocator (--reserve)\n",
                        format_bytes(settings.reserve()), format_bytes(settings.memory_bytes));
  }
  if (needed.host > 0 && (room.host > 0 || settings.on_gpus())) {
    text += fmt::format("a host must have {} for its {}", format_bytes(needed.host),
                        counted(settings.ranks_per_host(), "rank"));
    text += room.host > 0 ? ": " + enough(needed.host, room.host) : "; --host-memory checks it\n";
  }
  return text.empty() ? text : "\n" + text;
}

std::string strategies_text(PlanSearch& search, const Room& room) {
  const std::vector<StrategyNeeds> rows = search.strategies();
  const bool has_hosts = room.host > 0;
  std::string text = fmt::format("\n{:<30} {:>13}{}\n", "strategies", "of a device",
                                 has_hosts ? fmt::format(" {:>13}", "of a host") : "");
  for (const StrategyNeeds& each : rows) {
    text += fmt::format("  {:<28} {:>13}{}{}\n", each.name, format_bytes(each.needed.device),
                        has_hosts ? fmt::format(" {:>13}", format_bytes(each.needed.host)) : "",
                        fits(each.needed, room) ? "  fits" : "");
  }
  return text;
}

std::string changes_text(const std::vector<ChangeNeeds>& changes) {
  if (changes.empty()) return {};
  std::string text = fmt::format("\n{:<30} {:>13} {:>18}\n", "changes, in order of cost", "alone",
                                 "with those above");
  for (const ChangeNeeds& each : changes) {
    text += fmt::format("  {:<28} {:>13} {:>18}\n", each.change, format_bytes(each.alone.device),
                        format_bytes(each.together.device));
    if (each.change != "--offload") continue;
    text += fmt::format("    and {} of a host for its ranks\n", format_bytes(each.alone.host));
  }
  return text;
}

// Returns a change that is sufficient alone, or else all changes together, and the number of ranks
// with which the step fits.
std::string remedy_of(const std::vector<ChangeNeeds>& changes,
                      const std::optional<RanksNeeds>& smallest, const Room& room) {
  const auto one = std::ranges::find_if(
      changes, [&](const ChangeNeeds& each) { return fits(each.alone, room); });
  const bool enough = !changes.empty() && fits(changes.back().together, room);
  std::string remedy;
  if (one != changes.end()) {
    remedy = one->change;
  } else if (enough) {
    std::vector<std::string> words;
    for (const ChangeNeeds& each : changes) words.push_back(each.change);
    remedy = fmt::format("{}", fmt::join(words, " "));
  }
  if (smallest) {
    remedy += fmt::format("{}--ranks {}", remedy.empty() ? "" : ", or ", smallest->ranks);
  }
  return remedy.empty() ? "more memory or a smaller model" : remedy;
}

}  // namespace

std::string_view type_name(const fsdp::MixedPrecision& types) {
  if (types.param_dtype == torch::kBFloat16) return "bfloat16";
  return types.param_dtype == torch::kFloat16 ? "float16" : "float32";
}

std::string title_of(const KnownModel& model, int64_t parameters, int units) {
  return fmt::format("{}\n{}\n{} in {}", model.name, model.description, parameters_text(parameters),
                     counted(units, "unit"));
}

std::string describe_plan(const PlanSettings& settings, const KnownModel& model,
                          const fsdp::StepPlan& plan) {
  std::string text = fmt::format(
      "{}, {} × {} tokens a rank\n{} on {}, {}, {} on {}; {}\n\n",
      title_of(model, plan.parameters, plan.units), settings.batch.sequences, settings.batch.length,
      counted(settings.ranks, "rank"), counted(settings.hosts, "host"),
      fsdp::name_of(settings.run.engine.strategy), type_name(settings.run.engine.mixed_precision),
      settings.on_gpus() ? "GPUs" : "CPUs", optimizer_named(settings.optim).title);
  text += plan.to_string();
  if (settings.gigabytes_per_second > 0) text += overlap_text(settings, model, plan);
  return text + time_text(settings, model, plan) + checkpoint_text(settings, plan);
}

Verdict judge(const PlanSettings& settings, PlanSearch& search) {
  const Room room = settings.room(), needed = search.needed();
  Verdict verdict{.fits = fits(needed, room)};
  verdict.text = needs_text(settings, needed);
  if (room.device == 0 && room.host == 0) return verdict;
  verdict.text += strategies_text(search, room);
  const std::optional<RanksNeeds> smallest = search.smallest_ranks(room);
  if (smallest) {
    verdict.text += fmt::format("\n{} is the smallest number of ranks with which it fits ({})\n",
                                smallest->ranks, format_bytes(smallest->needed.device));
  } else {
    verdict.text += "\nno number of ranks makes it fit\n";
  }
  if (verdict.fits) return verdict;
  std::vector<ChangeNeeds> changes;
  if (!fits({.device = needed.device}, room)) changes = search.changes(room);
  verdict.text += changes_text(changes);
  verdict.remedy = remedy_of(changes, smallest, room);
  return verdict;
}

}  // namespace planning

#include "planning/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/bytes.h"
#include "plan/placement.h"

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

// Of one rank and step: operations that a token asks of a parameter. Two for its product in
// forward, four in backward, and forward's again for units that are recomputed.
double operations_per_parameter(int recompute) {
  return recompute == 0 ? 6.0 : 6.0 + 2.0 / recompute;
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

std::string overlap_text(const PlanSettings& settings, const fsdp::StepPlan& plan) {
  const int64_t tokens = settings.batch.sequences * settings.batch.length;
  const double each = operations_per_parameter(settings.run.engine.recompute);
  const double per_token =
      each * static_cast<double>(plan.parameters) / (settings.teraflops_per_second * 1e12);
  const double computing = per_token * static_cast<double>(tokens);
  const auto bytes = static_cast<double>(plan.traffic.total_bytes());
  const double sending = bytes / (settings.gigabytes_per_second * 1e9);
  std::string text =
      fmt::format("computing takes {} ({:.3g} operations a parameter and token), sending {}\n",
                  seconds_text(computing), each, seconds_text(sending));
  if (sending <= computing) return text + "communication can hide behind compute\n";
  return text + fmt::format("communication cannot hide: it could from {:.0f} tokens a rank on\n",
                            std::ceil(sending / per_token));
}

}  // namespace

std::string describe_plan(const PlanSettings& settings, const KnownModel& model,
                          const fsdp::StepPlan& plan) {
  const std::string device = settings.run.mesh.device == fsdp::DeviceKind::kCuda ? "GPUs" : "CPUs";
  std::string text = fmt::format(
      "{}\n{}\n{} in {}, {} × {} tokens a rank\n{} on {}, {}, on {}; AdamW\n\n", model.name,
      model.description, parameters_text(plan.parameters), counted(plan.units, "unit"),
      settings.batch.sequences, settings.batch.length, counted(settings.ranks, "rank"),
      counted(settings.hosts, "host"), fsdp::name_of(settings.run.engine.strategy), device);
  text += plan.to_string();
  if (settings.gigabytes_per_second > 0) text += overlap_text(settings, plan);
  return text;
}

Verdict judge(const PlanSettings& settings, PlanSearch& search) {
  const int64_t budget = settings.budget();
  const int64_t needed = search.plan().peak_bytes();
  Verdict verdict{.fits = needed <= budget};
  std::string& text = verdict.text;
  text = fmt::format("\na device must have {} for it: {} {} enough\n", format_bytes(needed),
                     format_bytes(budget), verdict.fits ? "are" : "are not");
  text += fmt::format("\n{:<30} {:>13}\n", "strategies", "of a device");
  for (const StrategyBytes& each : search.strategies()) {
    text += fmt::format("  {:<28} {:>13}{}\n", each.name, format_bytes(each.bytes),
                        each.bytes <= budget ? "  fits" : "");
  }
  const std::optional<RanksBytes> smallest = search.smallest_ranks(budget);
  if (smallest) {
    text += fmt::format("\n{} is the smallest number of ranks with which it fits ({})\n",
                        smallest->ranks, format_bytes(smallest->bytes));
  } else {
    text += "\nno number of ranks makes it fit\n";
  }
  if (verdict.fits) return verdict;

  const std::vector<ChangeBytes> changes = search.changes(budget);
  text += fmt::format("\n{:<30} {:>13} {:>18}\n", "changes, in order of cost", "alone",
                      "with those above");
  std::vector<std::string> words;
  for (const ChangeBytes& each : changes) {
    text += fmt::format("  {:<28} {:>13} {:>18}\n", each.change, format_bytes(each.alone),
                        format_bytes(each.together));
    words.push_back(each.change);
  }
  const auto one =
      std::ranges::find_if(changes, [&](const ChangeBytes& each) { return each.alone <= budget; });
  const bool enough = !changes.empty() && changes.back().together <= budget;
  if (one != changes.end()) {
    verdict.remedy = one->change;
  } else if (enough) {
    verdict.remedy = fmt::format("{}", fmt::join(words, " "));
  }
  if (smallest) {
    verdict.remedy += fmt::format("{}--ranks {}", enough ? ", or " : "", smallest->ranks);
  }
  if (verdict.remedy.empty()) verdict.remedy = "more memory, or a smaller model";
  return verdict;
}

}  // namespace planning

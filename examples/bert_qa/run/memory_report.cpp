#include "bert_qa/run/memory_report.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace bert_qa {
namespace {

const fsdp::MemoryBytes& highest_phase(const fsdp::MemoryPlan& plan) {
  return std::max(
      {std::cref(plan.rest), std::cref(plan.forward_peak), std::cref(plan.after_forward),
       std::cref(plan.backward_peak), std::cref(plan.after_backward)},
      [](const fsdp::MemoryBytes& a, const fsdp::MemoryBytes& b) { return a.total() < b.total(); });
}

}  // namespace

std::string planned_and_measured(const fsdp::MemoryPlan& plan, const fsdp::MemoryBytes& rest,
                                 const fsdp::MemoryBytes& peak) {
  const fsdp::MemoryBytes& planned_peak = highest_phase(plan);
  std::string table = fmt::format("{:<20} {:>14} {:>14} {:>14} {:>14}\n", "bytes of this rank",
                                  "rest: planned", "measured", "peak: planned", "measured");
  const auto row = [&](std::string_view name, auto&& pick) {
    table += fmt::format("{:<20} {:>14} {:>14} {:>14} {:>14}\n", name,
                         fsdp::format_bytes(pick(plan.rest)), fsdp::format_bytes(pick(rest)),
                         fsdp::format_bytes(pick(planned_peak)), fsdp::format_bytes(pick(peak)));
  };
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<fsdp::MemoryCategory>(i);
    row(fsdp::name_of(category), [&](const fsdp::MemoryBytes& bytes) { return bytes[category]; });
  }
  row("total", [](const fsdp::MemoryBytes& bytes) { return bytes.total(); });
  return table;
}

std::string planned_and_taken(const fsdp::StepPlan& plan, const fsdp::Traffic& sent,
                              int64_t micro_batches) {
  const std::string of =
      micro_batches == 1 ? "" : fmt::format(" for {} micro-batches", micro_batches);
  return fmt::format(
      "sent in a step: planned {}, measured {}{}\n"
      "in all: planned {} with LibTorch's tensors, resident {}\n",
      fsdp::format_bytes(plan.traffic.total_bytes()), fsdp::format_bytes(sent.total_bytes()), of,
      fsdp::format_bytes(plan.peak_bytes()), fsdp::format_bytes(peak_resident_bytes()));
}

std::string beside_plan(std::span<const Amount> amounts) {
  std::string text;
  size_t others = 0;
  for (const Amount& amount : amounts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        fsdp::format_bytes(amount.measured_bytes), amount.of);
    const int64_t more = amount.measured_bytes - amount.planned_bytes;
    if (more == 0) continue;
    text += fmt::format(" ({} {} plan)", fsdp::format_bytes(std::abs(more)),
                        more > 0 ? "over" : "under");
    ++others;
  }
  if (others == amounts.size()) return text;
  return text + (others == 0 ? ", as planned" : ", else as planned");
}

std::string measured_line(const fsdp::Engine& engine, const fsdp::StepPlan& plan,
                          const training::StepRecord& record, int64_t micro_batches) {
  const fsdp::MemoryPlan held = engine.memory_plan();
  std::vector<Amount> amounts = {
      {"at rest", held.rest.total(), engine.stats().memory.in_use.total()},
      {"at peak", held.peak_bytes(), record.peak.total()}};
  if (micro_batches == 1) {
    amounts.push_back({"sent", plan.traffic.total_bytes(), record.sent.total_bytes()});
  }
  if (engine.options().memory_limit > 0) {
    amounts.push_back({"of the device", plan.peak_bytes(), record.device_peak_bytes});
  }
  return fmt::format("step {}: engine {}", record.step, beside_plan(amounts));
}

std::string device_use(const DeviceUse& use) {
  const auto percent_off = [](int64_t planned, int64_t measured) {
    if (measured == planned || planned == 0) return std::string("the same");
    constexpr double kPercent = 100.0;
    const double off = kPercent * static_cast<double>(measured - planned) / planned;
    return fmt::format("{:.2f} % {}", std::abs(off), off > 0 ? "more" : "less");
  };
  std::string text = fmt::format(
      "device: planned {}, measured {} ({}), limit {}\n", fsdp::format_bytes(use.planned_bytes),
      fsdp::format_bytes(use.measured_bytes), percent_off(use.planned_bytes, use.measured_bytes),
      fsdp::format_bytes(use.limit_bytes));
  text += use.engine_as_planned
              ? "        of which the engine's buffers are the plan's, to the byte\n"
              : "        of which the engine's buffers are not the plan's\n";
  if (use.planned_host_bytes > 0) {
    text += fmt::format("host: planned {}, measured {} ({})\n",
                        fsdp::format_bytes(use.planned_host_bytes),
                        fsdp::format_bytes(use.measured_host_bytes),
                        percent_off(use.planned_host_bytes, use.measured_host_bytes));
  }
  return text;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;  // Linux reports KiB
}

}  // namespace bert_qa

#include "bert_qa/run/memory_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/bytes.h"

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

int64_t peak_resident_bytes() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace bert_qa

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/plan.h"
#include "fsdp/program_text.h"
#include "plan/placement.h"

namespace fsdp {

int64_t StepPlan::peak_bytes() const {
  return memory.held_bytes + std::max(torch.forward_peak, torch.backward_peak);
}

std::string StepPlan::summary() const {
  std::string text =
      fmt::format("{} on {} {}, {} {}: {} a rank at rest, {} at peak", name_of(strategy), ranks,
                  ranks == 1 ? "rank" : "ranks", units, units == 1 ? "unit" : "units",
                  format_bytes(memory.rest.total() + torch.rest), format_bytes(peak_bytes()));
  if (memory.host_held_bytes > 0) {
    text += fmt::format(", {} on the host", format_bytes(memory.host_held_bytes));
  }
  if (!refused_at.empty()) text += "; more than the memory limit from: " + refused_at;
  for (const std::string& note : notes) text += "\nnote: " + note;
  return text;
}

std::string StepPlan::to_string() const {
  std::string text = fmt::format("{:<22} {:>13} {:>13} {:>13} {:>13}\n", "bytes of one rank",
                                 "rest", "forward peak", "after forward", "backward peak");
  const auto row = [&](std::string_view name, int64_t rest, int64_t forward, int64_t after,
                       int64_t backward) {
    text += fmt::format("{:<22} {:>13} {:>13} {:>13} {:>13}\n", name, format_bytes(rest),
                        format_bytes(forward), format_bytes(after), format_bytes(backward));
  };
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (memory.rest[category] == 0 && memory.forward_peak[category] == 0 &&
        memory.backward_peak[category] == 0) {
      continue;
    }
    row(name_of(category), memory.rest[category], memory.forward_peak[category],
        memory.after_forward[category], memory.backward_peak[category]);
  }
  row("LibTorch's tensors", torch.rest, torch.forward_peak, torch.after_forward,
      torch.backward_peak);
  text += fmt::format("held by the engine {}, with LibTorch's highest {}\n",
                      format_bytes(memory.held_bytes), format_bytes(peak_bytes()));
  if (memory.host_held_bytes > 0) {
    text += fmt::format("held on the host {}\n", format_bytes(memory.host_held_bytes));
  }
  const auto sent = [&](std::string_view over, const AxisTraffic& axis) {
    if (axis == AxisTraffic{}) return;
    text += fmt::format("sent {}: {} in {} gathers, {} in {} reductions\n", over,
                        format_bytes(axis.gathered_bytes), axis.gathers,
                        format_bytes(axis.reduced_bytes), axis.reductions);
  };
  sent("over all ranks", traffic.world);
  sent("inside groups", traffic.inside);
  sent("across groups", traffic.across);
  if (traffic.to_other_hosts > 0) {
    text += fmt::format("sent to other hosts: {}\n", format_bytes(traffic.to_other_hosts));
  }
  if (!refused_at.empty()) text += "more than the memory limit from: " + refused_at + '\n';
  for (const std::string& note : notes) text += "note: " + note + '\n';
  return text;
}

}  // namespace fsdp

#include "shard/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/bytes.h"

namespace fsdp {
namespace {

// Counts how many slots of each size are out at once.
class SlotCounter {
 public:
  void take(int64_t bytes) {
    if (bytes > 0) peak_[bytes] = std::max(peak_[bytes], ++out_[bytes]);
  }
  void give(int64_t bytes) {
    if (bytes > 0) --out_[bytes];
  }
  const std::map<int64_t, int64_t>& peak() const { return peak_; }

 private:
  std::map<int64_t, int64_t> out_, peak_;
};

class Player {
 public:
  explicit Player(const MemoryInputs& inputs) : inputs_(inputs) {
    for (const UnitSizes& unit : inputs.units) {
      now_[MemoryCategory::kMainShards] += unit.main_shard_bytes;
      now_[MemoryCategory::kResidentParameters] += unit.resident_bytes;
    }
    now_[MemoryCategory::kOptimizerState] = inputs.optimizer_state_bytes;
    plan_.rest = now_;
    peak_ = now_;
  }

  void play(const MemoryEvent& event) {
    const UnitSizes& unit = inputs_.units[event.unit];
    switch (event.action) {
      case MemoryAction::kTakeParameters:
        parameters_.take(unit.parameter_slot_bytes);
        return add(MemoryCategory::kParameterSlots, unit.parameter_slot_bytes);
      case MemoryAction::kGiveParameters:
        parameters_.give(unit.parameter_slot_bytes);
        return add(MemoryCategory::kParameterSlots, -unit.parameter_slot_bytes);
      case MemoryAction::kTakeReduce:
        reduces_.take(unit.reduce_slot_bytes);
        return add(MemoryCategory::kReduceSlots, unit.reduce_slot_bytes);
      case MemoryAction::kGiveReduce:
        reduces_.give(unit.reduce_slot_bytes);
        return add(MemoryCategory::kReduceSlots, -unit.reduce_slot_bytes);
      case MemoryAction::kTakeMainGradient:
        gradient_bytes_ += unit.main_gradient_bytes;
        return add(MemoryCategory::kMainGradients, unit.main_gradient_bytes);
      case MemoryAction::kEndForward:
        plan_.forward_peak = peak_;
        plan_.after_forward = now_;
        peak_ = now_;
        return;
      case MemoryAction::kEndBackward:
        plan_.backward_peak = peak_;
        plan_.after_backward = now_;
        return;
    }
  }

  MemoryPlan finish() {
    plan_.held_bytes = plan_.rest.total() + gradient_bytes_;
    for (const UnitSizes& unit : inputs_.units)
      plan_.kept_gradient_bytes += unit.kept_gradient_bytes;
    add_slots(MemoryCategory::kParameterSlots, parameters_, 0);
    add_slots(MemoryCategory::kReduceSlots, reduces_, inputs_.streams_overlap ? 1 : 0);
    return plan_;
  }

 private:
  void add(MemoryCategory category, int64_t bytes) {
    now_[category] += bytes;
    if (now_.total() > peak_.total()) peak_ = now_;
  }

  void add_slots(MemoryCategory category, const SlotCounter& counter, int64_t in_flight) {
    for (const auto& [bytes, count] : counter.peak()) {
      // A slot still being read by a reduce is only worth having where another unit can need it.
      const int64_t units = std::count_if(
          inputs_.units.begin(), inputs_.units.end(),
          [&, size = bytes](const UnitSizes& unit) { return unit.reduce_slot_bytes == size; });
      const int64_t slots =
          in_flight > 0 ? std::min(count + in_flight, std::max(count, units)) : count;
      plan_.slots.push_back({category, bytes, slots});
      plan_.held_bytes += bytes * slots;
    }
  }

  const MemoryInputs& inputs_;
  MemoryPlan plan_;
  MemoryBytes now_, peak_;
  SlotCounter parameters_, reduces_;
  int64_t gradient_bytes_ = 0;
};

}  // namespace

MemoryPlan play_memory(const MemoryInputs& inputs, std::span<const MemoryEvent> events) {
  Player player(inputs);
  for (const MemoryEvent& event : events) player.play(event);
  return player.finish();
}

std::string_view name_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kMainShards:
      return "main shards";
    case MemoryCategory::kMainGradients:
      return "main gradients";
    case MemoryCategory::kOptimizerState:
      return "optimizer state";
    case MemoryCategory::kResidentParameters:
      return "resident parameters";
    case MemoryCategory::kParameterSlots:
      return "parameter slots";
    case MemoryCategory::kReduceSlots:
      return "reduce slots";
  }
  return "unknown";
}

int64_t MemoryBytes::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t MemoryPlan::peak_bytes() const {
  return std::max({rest.total(), forward_peak.total(), backward_peak.total()});
}

std::string MemoryPlan::to_string() const {
  std::string table =
      fmt::format("{:<20} {:>12} {:>12} {:>14} {:>14} {:>15}\n", "bytes of this rank", "rest",
                  "forward peak", "after forward", "backward peak", "after backward");
  const auto row = [&](std::string_view name, auto&& pick) {
    table +=
        fmt::format("{:<20} {:>12} {:>12} {:>14} {:>14} {:>15}\n", name, format_bytes(pick(rest)),
                    format_bytes(pick(forward_peak)), format_bytes(pick(after_forward)),
                    format_bytes(pick(backward_peak)), format_bytes(pick(after_backward)));
  };
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    row(name_of(category), [&](const MemoryBytes& bytes) { return bytes[category]; });
  }
  row("total", [](const MemoryBytes& bytes) { return bytes.total(); });
  if (kept_gradient_bytes > 0) {
    table += fmt::format("{:<20} {:>12} more while GradSync(false) keeps whole gradients\n",
                         "kept gradients", format_bytes(kept_gradient_bytes));
  }
  return table;
}

}  // namespace fsdp

#include "plan/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

// Counts how many slots of each size are in use at the same time.
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

// Units that consist of byte counts only. Each action changes the counts in the same order in which
// the engine allocates and releases memory, because the plan must equal the measurement to the
// byte.
class CountedUnits : public UnitActions {
 public:
  explicit CountedUnits(const MemoryInputs& inputs) : inputs_(inputs), units_(inputs.units.size()) {
    MemoryBytes& main = main_state();
    for (const UnitSizes& unit : inputs.units) {
      main[MemoryCategory::kMainShards] += unit.main_shard_bytes;
      now_[MemoryCategory::kResidentParameters] += unit.resident_bytes;
    }
    main[MemoryCategory::kOptimizerState] = inputs.optimizer_state_bytes;
    (inputs.on_gpu ? host_ : now_)[MemoryCategory::kCheckpointStaging] =
        inputs.checkpoint_staging_bytes;
    plan_.rest = now_;
    plan_.host_rest = host_peak_ = host_;
    peak_ = now_;
  }

  ParameterState parameters(int unit) const override { return units_[unit].parameters; }
  GradientState gradients(int unit) const override { return units_[unit].gradients; }

  // Accepts every prefetch: the number of slots is a result of the plan, so no slot is missing.
  bool unshard(int unit, Urgency /*urgency*/) override {
    units_[unit].parameters = ParameterState::kGathering;
    parameter_slots_.take(sizes(unit).parameter_slot_bytes);
    add(MemoryCategory::kParameterSlots, sizes(unit).parameter_slot_bytes);
    return true;
  }
  void wait_for_unshard(int unit) override { units_[unit].parameters = ParameterState::kUnsharded; }
  void reshard(int unit) override {
    units_[unit].parameters = ParameterState::kSharded;
    parameter_slots_.give(sizes(unit).parameter_slot_bytes);
    add(MemoryCategory::kParameterSlots, -sizes(unit).parameter_slot_bytes);
  }

  void open_gradients(int unit, GradientSync /*sync*/) override {
    if (units_[unit].gradients == GradientState::kCapturing) return;
    units_[unit].gradients = GradientState::kCapturing;
    // Some units capture gradients in place, in the main gradient. Once main gradients exist, such
    // a unit may need a slot. The sums over the ranks are then formed in the slot and added to the
    // main gradients.
    const bool adds = units_[unit].has_main_gradient;
    units_[unit].reduce_slot_bytes =
        adds ? sizes(unit).adding_slot_bytes : sizes(unit).reduce_slot_bytes;
    if (sizes(unit).captures_in_place) take_main_gradient(unit);
    reduce_slots_.take(units_[unit].reduce_slot_bytes);
    add(MemoryCategory::kReduceSlots, units_[unit].reduce_slot_bytes);
  }
  void keep_gradients(int unit) override { units_[unit].gradients = GradientState::kKept; }
  void reduce(int unit, bool /*across*/) override {
    units_[unit].gradients = GradientState::kNone;
    // The main gradient is allocated before the slot is released, so the peak includes both.
    take_main_gradient(unit);
    reduce_slots_.give(units_[unit].reduce_slot_bytes);
    add(MemoryCategory::kReduceSlots, -units_[unit].reduce_slot_bytes);
  }
  void sum_across(int /*unit*/) override {}  // the simulated pass reduces over all ranks
  void update(int unit) override {
    units_[unit].has_main_gradient = false;
    for (const int64_t bytes : sizes(unit).main_gradient_slots) {
      main_gradient_slots_.give(bytes);
      main_state()[MemoryCategory::kMainGradients] -= bytes;
    }
  }
  void abandon_gradients(int /*unit*/) override {}  // a recorded pass has not failed

  void end_forward() {
    raise(plan_.forward_peak);
    plan_.after_forward = now_;
  }
  void end_backward() {
    raise(plan_.backward_peak);
    plan_.after_backward = now_;
  }

  MemoryPlan finish() && {
    // The held bytes include main gradients, which stay from backward to zero_grad, and the pools'
    // free slots.
    plan_.held_bytes = plan_.rest.total() + now_[MemoryCategory::kMainGradients];
    plan_.host_peak = host_peak_;
    plan_.host_held_bytes = host_.total();
    for (const UnitSizes& unit : inputs_.units) {
      plan_.kept_gradient_bytes += unit.kept_gradient_bytes;
    }
    add_slots(MemoryCategory::kParameterSlots, parameter_slots_, 0);
    add_slots(MemoryCategory::kReduceSlots, reduce_slots_, inputs_.streams_overlap ? 1 : 0);
    if (inputs_.updates) add_slots(MemoryCategory::kMainGradients, main_gradient_slots_, 0);
    return std::move(plan_);
  }

 private:
  struct UnitState {
    ParameterState parameters = ParameterState::kSharded;
    GradientState gradients = GradientState::kNone;
    bool has_main_gradient = false;
    int64_t reduce_slot_bytes = 0;  // of the slot that the unit holds
  };

  const UnitSizes& sizes(int unit) const { return inputs_.units[unit]; }

  MemoryBytes& main_state() { return inputs_.offloads ? host_ : now_; }

  void take_main_gradient(int unit) {
    if (std::exchange(units_[unit].has_main_gradient, true)) return;
    for (const int64_t bytes : sizes(unit).main_gradient_slots) {
      main_gradient_slots_.take(bytes);
      main_state()[MemoryCategory::kMainGradients] += bytes;
    }
    note_peak();
  }

  void add(MemoryCategory category, int64_t bytes) {
    now_[category] += bytes;
    note_peak();
  }

  // Raises `highest` to the peak since the last call and starts a new peak.
  void raise(MemoryBytes& highest) {
    if (peak_.total() > highest.total()) highest = peak_;
    peak_ = now_;
  }

  void note_peak() {
    if (now_.total() > peak_.total()) peak_ = now_;
    if (host_.total() > host_peak_.total()) host_peak_ = host_;
  }

  void add_slots(MemoryCategory category, const SlotCounter& counter, int64_t in_flight) {
    for (const auto& [bytes, count] : counter.peak()) {
      // The plan has one slot more than the peak, so that a unit can acquire a slot while a
      // reduction still reads the last one. The additional slot helps only if more than one unit
      // uses slots of this size.
      const int64_t units = std::count_if(
          inputs_.units.begin(), inputs_.units.end(), [&, size = bytes](const UnitSizes& unit) {
            return unit.reduce_slot_bytes == size ||
                   (inputs_.accumulates && unit.adding_slot_bytes == size);
          });
      const int64_t slots =
          in_flight > 0 ? std::min(count + in_flight, std::max(count, units)) : count;
      plan_.slots.push_back({category, bytes, slots});
      const bool on_host = inputs_.offloads && category == MemoryCategory::kMainGradients;
      (on_host ? plan_.host_held_bytes : plan_.held_bytes) += bytes * slots;
    }
  }

  const MemoryInputs& inputs_;
  std::vector<UnitState> units_;
  MemoryPlan plan_;
  MemoryBytes now_, peak_;
  MemoryBytes host_, host_peak_;  // main state on the host
  SlotCounter parameter_slots_, reduce_slots_, main_gradient_slots_;
};

}  // namespace

MemoryPlan plan_memory(const MemoryInputs& inputs, const PassRecord& record) {
  CountedUnits units(inputs);
  // The second pass finds main gradients. Further passes would find the same state.
  for (int backwards = inputs.accumulates ? 2 : 1; backwards > 0; --backwards) {
    Pass pass(units, inputs.rules, record, inputs.kept_units, inputs.updates);
    play(record, pass, [&] { units.end_forward(); });
    units.end_backward();
  }
  return std::move(units).finish();
}

int64_t MemoryPlan::peak_bytes() const {
  return std::max({rest.total(), forward_peak.total(), backward_peak.total()});
}

std::string MemoryPlan::to_string() const {
  std::string table;
  const auto line = [&](std::string_view name, const std::array<std::string, 5>& cells) {
    table += fmt::format("{:<19}{:>12}{:>12}{:>12}{:>12}{:>12}\n", name, cells[0], cells[1],
                         cells[2], cells[3], cells[4]);
  };
  const auto row = [&](std::string_view name, auto&& pick) {
    line(name, {format_bytes(pick(rest)), format_bytes(pick(forward_peak)),
                format_bytes(pick(after_forward)), format_bytes(pick(backward_peak)),
                format_bytes(pick(after_backward))});
  };
  line("", {"", "forward", "after", "backward", "after"});
  line("bytes of this rank", {"rest", "peak", "forward", "peak", "backward"});
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    row(name_of(category), [&](const MemoryBytes& bytes) { return bytes[category]; });
  }
  row("total", [](const MemoryBytes& bytes) { return bytes.total(); });
  if (host_peak.total() > 0) {
    table += fmt::format("{:<19}{:>12}{:>12} at the highest point of a step\n", "on the host",
                         format_bytes(host_rest.total()), format_bytes(host_peak.total()));
  }
  if (kept_gradient_bytes > 0) {
    table += fmt::format("{:<19}{:>12} more while GradSync(false) keeps them whole\n",
                         "kept gradients", format_bytes(kept_gradient_bytes));
  }
  return table;
}

}  // namespace fsdp

#include "plan/pass.h"

#include <utility>

namespace fsdp {

Pass::Pass(UnitActions& actions, std::vector<UnitRules> rules, PassRecord hint, int kept_units,
           bool updates)
    : actions_(actions),
      rules_(std::move(rules)),
      kept_units_(kept_units),
      updates_(updates, rules_.size()),
      unit_calls_(rules_.size(), 0),
      hint_(std::move(hint)),
      order_(hint_) {
  choose_kept();
}

// Backward begins with the last units of forward. If these units stay unsharded, they need no
// second gather.
void Pass::choose_kept() {
  is_kept_.assign(rules_.size(), 0);
  const std::vector<int> forward = hint_.forward_order();
  int left = kept_units_;
  for (auto unit = forward.rbegin(); unit != forward.rend() && left > 0; ++unit) {
    if (*unit == 0 || is_kept_[*unit] != 0) continue;
    is_kept_[*unit] = 1;
    --left;
  }
}

// ---- forward ----

void Pass::begin_forward() {
  forward_began_ = record_.mark();
  order_.begin_forward();
  forward_in_graph_ = false;
}

int Pass::pre_forward(int unit) {
  const int call = record_.next_call();
  ++forward_calls_;
  order_.needed_in_forward(unit);
  begin_call(unit, order_.ahead_in_forward(rules_[unit].prefetch_units));
  record_.add({.boundary = Boundary::kPreForward, .unit = unit, .call = call});
  return call;
}

void Pass::post_forward(int unit, int call, bool in_graph) {
  end_call(unit);
  --forward_calls_;
  if (call >= 0) {
    record_.add({.boundary = Boundary::kPostForward, .flag = in_graph, .unit = unit, .call = call});
  }
  forward_in_graph_ = forward_in_graph_ || in_graph;
  if (unit_calls_[unit] > 0) return;  // an enclosing call still reads the parameters
  if (active_calls_ > 0) {
    if (goes(unit)) reshard(unit);
    return;
  }
  // The outermost call ends. If it made a graph, its unit (the root) and the units that are not
  // resharded after forward stay unsharded for backward. Without a graph all units are resharded,
  // because an optimizer step may follow.
  for (int each = 0; each < unit_count(); ++each) {
    const bool stays = in_graph && (each == unit || !goes(each));
    if (!stays) reshard(each);
  }
  // A forward without a graph (an evaluation) is not part of a pass. The record must contain only
  // events that predict the next pass.
  if (!forward_in_graph_) record_.rewind(forward_began_);
}

void Pass::pre_recompute(int unit) {
  begin_call(unit, needed_in_backward(unit));
  note_in_backward({.boundary = Boundary::kPreForward, .unit = unit});
}

// Ends a recomputation. The unit stays unsharded, because the unit's own backward follows at once.
void Pass::post_recompute(int unit) {
  end_call(unit);
  note_in_backward({.boundary = Boundary::kPostForward, .unit = unit});
}

// The gather stream works in order of issue, so the unit's own gather is issued before the
// prefetches. The prefetches are issued before the wait, so that they overlap with the unit's
// forward.
void Pass::begin_call(int unit, const std::vector<int>& ahead) {
  demand(unit);
  prefetch(ahead);
  wait(unit);
  ++unit_calls_[unit];
  ++active_calls_;
}

void Pass::end_call(int unit) {
  --unit_calls_[unit];
  --active_calls_;
}

// ---- backward ----

void Pass::begin_backward() {
  in_backward_ = true;
  updates_.begin_backward(record_);
  if (is_inside_forward()) return;
  // Before the first pass the hint is a guess from the module tree. So the order of backward is
  // predicted from the forward that was just recorded.
  if (hint_.is_guess()) order_.expect_backward(record_.expected_backward_order());
  order_.begin_backward();
  note_in_backward({.boundary = Boundary::kBeginBackward});
}

void Pass::pre_backward(int unit, bool captures) {
  // In some units (embeddings) backward reads no parameters and only captures gradients.
  const bool reads = rules_[unit].unshard_in_backward;
  if (reads) demand(unit);
  prefetch(needed_in_backward(unit));
  if (reads) wait(unit);
  if (captures) actions_.open_gradients(unit, sync_);
  note_in_backward({.boundary = Boundary::kPreBackward, .flag = captures, .unit = unit});
}

void Pass::idle(int unit) {
  reshard(unit);
  note_in_backward({.boundary = Boundary::kIdle, .unit = unit});
}

// The unit is resharded first, so that its parameter slot is released before the reduction acquires
// memory.
void Pass::close(int unit, bool captures) {
  reshard(unit);
  note_in_backward({.boundary = Boundary::kClose, .flag = captures, .unit = unit});
  if (!captures) return;  // gradients that earlier passes kept stay unchanged
  if (actions_.gradients(unit) != GradientState::kCapturing) return;
  if (reduces()) {
    actions_.reduce(unit, sums_across());
    if (updates_.after_reduction(unit)) actions_.update(unit);
  } else {
    actions_.keep_gradients(unit);
  }
}

// The reductions below are issued in the order of units, which is equal on all ranks.
void Pass::end_backward(bool captures) {
  in_backward_ = false;
  for (int unit = 0; unit < unit_count(); ++unit) {
    // The unit may still be unsharded: recomputation or a prefetch gathered it, or it stayed
    // unsharded after forward and backward did not reach it.
    reshard(unit);
    // If this pass reduces, it also reduces the gradients that earlier passes kept of units that
    // this pass did not reach.
    if (captures && reduces() && actions_.gradients(unit) == GradientState::kKept) {
      actions_.reduce(unit, sums_across());
    }
    // Earlier passes may have reduced gradients within groups only, so that the sum over the groups
    // is still missing.
    if (captures && sums_across()) actions_.sum_across(unit);
    if (updates_.at_end(unit)) actions_.update(unit);
  }
  note_in_backward({.boundary = Boundary::kEndBackward});
}

bool Pass::take_record(bool captures) {
  PassRecord taken = std::exchange(record_, {});
  kept_calls_ = 0;
  if (!captures || taken.calls() == 0) return false;
  const bool differs = !(taken == hint_);
  // If the hint is a guess and equals the record, the record replaces it. The next begin_backward
  // then does not predict the order of backward again.
  if (!differs && !hint_.is_guess()) return false;
  expect(std::move(taken));
  return differs;
}

void Pass::expect(PassRecord hint) {
  hint_ = std::move(hint);
  order_ = UnitOrder(hint_);
  choose_kept();
}

// Called for every engine of the mesh when a backward fails. An engine that this backward did not
// reach keeps its gradients.
void Pass::abandon() {
  const bool had_opened = std::exchange(in_backward_, false);
  if (!is_inside_forward()) {
    record_.clear();
    kept_calls_ = 0;
  }
  for (int unit = 0; unit < unit_count(); ++unit) {
    if (had_opened) actions_.abandon_gradients(unit);
    reshard(unit);
  }
}

// ---- both ----

void Pass::wait(int unit) {
  demand(unit);
  if (actions_.parameters(unit) == ParameterState::kGathering) actions_.wait_for_unshard(unit);
}

// Never waits. If no slot is free for a unit, the unit is gathered later on demand.
void Pass::prefetch(const std::vector<int>& ahead) {
  for (const int unit : ahead) {
    if (!rules_[unit].is_gathered || is_updated(unit)) continue;
    if (actions_.parameters(unit) != ParameterState::kSharded) continue;
    actions_.unshard(unit, Urgency::kPrefetch);
  }
}

std::vector<int> Pass::needed_in_backward(int unit) {
  if (is_inside_forward()) return {};  // the order belongs to the pass around this backward
  order_.needed_in_backward(unit);
  std::vector<int> units = order_.ahead_in_backward(rules_[unit].prefetch_units);
  std::erase_if(units, [&](int each) { return !rules_[each].unshard_in_backward; });
  return units;
}

void Pass::note_in_backward(const PassEvent& event) {
  if (!is_inside_forward()) record_.add(event);
}

void Pass::reshard(int unit) {
  if (unit_calls_[unit] > 0) return;
  if (actions_.parameters(unit) != ParameterState::kSharded) actions_.reshard(unit);
}

void Pass::keep_only(std::span<const int> calls) {
  record_.keep_only(calls);
  kept_calls_ = record_.calls();
}

void play(const PassRecord& record, Pass& pass, const std::function<void()>& at_backward) {
  for (const PassEvent& event : record.events()) {
    switch (event.boundary) {
      case Boundary::kPreForward:
        if (event.call < 0) {
          pass.pre_recompute(event.unit);
        } else {
          if (pass.active_calls() == 0) pass.begin_forward();
          pass.pre_forward(event.unit);
        }
        break;
      case Boundary::kPostForward:
        if (event.call < 0) {
          pass.post_recompute(event.unit);
        } else {
          pass.post_forward(event.unit, event.call, event.flag);
        }
        break;
      case Boundary::kBeginBackward:
        if (at_backward) at_backward();
        pass.begin_backward();
        break;
      case Boundary::kPreBackward:
        pass.pre_backward(event.unit, event.flag);
        break;
      case Boundary::kIdle:
        pass.idle(event.unit);
        break;
      case Boundary::kClose:
        pass.close(event.unit, event.flag);
        break;
      case Boundary::kEndBackward:
        pass.end_backward(/*captures=*/true);
        break;
    }
  }
}

}  // namespace fsdp

// Plays a recorded pass as the engine would run it and notes the slots that it takes and gives.
// tests/engine/memory_test.cpp holds it against the engine to the byte.
#pragma once

#include <span>
#include <vector>

#include "engine/schedule.h"

namespace fsdp {

class SchedulePlayer {
 public:
  SchedulePlayer(const std::vector<RecordedCall>& calls, std::span<const UnitRules> rules);
  std::vector<MemoryEvent> play();

 private:
  struct UnitState {
    bool seated = false;
    bool open = false;          // between pre_backward and closing
    bool has_gradient = false;  // main gradient taken
    int active = 0;             // forwards under way
    int over_calls = 0, fired_calls = 0, left_calls = 0;
  };
  void play_forward();
  void play_backward();
  void enter(size_t position, const RecordedCall& call);
  void exit(const RecordedCall& call);
  void fire(const RecordedCall& call, size_t order);
  void close_finished(int next_unit);
  void close(int unit);
  void seat(int unit);
  void unseat(int unit);
  void take_main_gradient(int unit);
  void note(MemoryAction action, int unit) { events_.push_back({action, unit}); }

  const std::vector<RecordedCall>& calls_;
  std::span<const UnitRules> rules_;
  std::vector<UnitState> units_;
  std::vector<int> forward_order_, backward_order_;
  std::vector<int> open_;  // in the order of opening
  std::vector<MemoryEvent> events_;
};

}  // namespace fsdp

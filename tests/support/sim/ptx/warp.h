// Up to 32 threads that run the same instruction, and the block around them.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "support/sim/ptx/launch.h"

namespace fsdp::testing::ptx {

inline constexpr int kLanes = 32;
using Mask = uint32_t;  // a bit a lane

// Barriers that a thread has passed: of the block, and of its warp since.
struct Epoch {
  uint32_t block = 1, warp = 0;
  uint32_t at_once() const { return block << 12 | (warp & 0xfffU); }
};

struct BlockState {
  const Launch* launch = nullptr;
  DeviceMemory* memory = nullptr;
  LaunchReport* report = nullptr;
  uint32_t launch_number = 0;
  Dim place;  // x, y, z of this block
  uint32_t number = 0;
  uint32_t barriers = 1;
  std::vector<std::byte> shared;
  Shadow shared_shadow;  // addresses from 0 on
};

enum class LaneState : uint8_t { kRunning, kAtBarrier, kDone };

class Warp {
 public:
  Warp(BlockState& block, int number, int lanes);

  BlockState& block() const { return block_; }
  uint64_t value(const Operand& operand, int lane) const;
  void set(int index, int lane, uint64_t value) { registers_[index * kLanes + lane] = value; }
  bool predicate(int index, int lane) const { return (registers_[index * kLanes + lane] & 1) != 0; }

  uint32_t thread(int lane) const { return static_cast<uint32_t>(number_ * kLanes + lane); }
  Epoch epoch() const { return {.block = block_.barriers, .warp = barriers_}; }
  std::vector<std::byte>& local(int lane) { return local_[lane]; }

  // Lanes in this state.
  Mask in_state(LaneState state) const;
  void set_state(Mask lanes, LaneState state);
  // Runs until every lane is done or waits at a barrier of the block.
  void run();

  // "in adamw, block (3, 0, 0), thread 17: st.global.f32 [%rd4], %f2"
  std::string where(int lane) const;

 private:
  void step(int at, Mask active);
  void meet(const Instruction& instruction, Mask active);
  void shuffle(const Instruction& instruction, Mask active);
  void vote(const Instruction& instruction, Mask active);
  void require_all_of(const Operand& mask, Mask active) const;

  BlockState& block_;
  int number_;
  int lanes_;
  uint32_t barriers_ = 0;
  const Instruction* now_ = nullptr;
  std::vector<uint64_t> registers_;  // 32 of each
  std::vector<int> next_;            // instruction of each lane
  std::vector<LaneState> states_;
  std::vector<std::vector<std::byte>> local_;
};

// Arithmetic, moves and conversions of the active lanes. Errors: Objection for a combination of
// opcode and type that is not known.
void compute(Warp& warp, const Instruction& instruction, Mask active);
void convert(Warp& warp, const Instruction& instruction, Mask active);
// Loads and stores.
void access(Warp& warp, const Instruction& instruction, Mask active);

// Calls visit(lane) for each lane of the mask, in ascending order.
template <class Visit>
void for_each_lane(Mask mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

}  // namespace fsdp::testing::ptx

// A warp (up to 32 threads that run the same instruction) and its block.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "simulator/ptx/launch.h"

namespace fsdp::testing::ptx {

inline constexpr int kLanes = 32;
using Mask = uint32_t;  // one bit for each lane

// The number of barriers that a thread has passed: those of its block, and those of its warp since
// the block's last one.
struct Epoch {
  uint32_t block = 1, warp = 0;
  uint32_t at_once() const { return block << 12 | (warp & 0xfffU); }
};

struct BlockState {
  const Launch* launch = nullptr;
  DeviceMemory* memory = nullptr;
  LaunchReport* report = nullptr;
  uint32_t launch_number = 0;
  Dim place;  // x, y and z of this block
  uint32_t number = 0;
  uint32_t barriers = 1;
  std::vector<std::byte> shared;
  Shadow shared_shadow;  // its addresses begin at 0
};

// The value of an operand in each lane.
class LaneValues {
 public:
  // The value of lane l is values[l * step].
  LaneValues(const uint64_t* values, int step) : values_(values), step_(step) {}
  uint64_t operator[](int lane) const { return values_[lane * step_]; }
  bool is_one() const { return step_ == 0; }  // the same for all lanes

 private:
  const uint64_t* values_;
  int step_;
};

// The registers of a warp. PTX from a compiler names hundreds of registers, and a block uses few of
// them, so unused registers take no time.
class RegisterFile {
 public:
  explicit RegisterFile(int registers)
      : lanes_(std::make_unique_for_overwrite<uint64_t[]>(static_cast<size_t>(registers) * kLanes)),
        blocks_(static_cast<size_t>(registers), 0) {}

  // Marks all registers as unwritten.
  void begin_block() { ++block_; }

  uint64_t* lanes(int index) {
    uint64_t* const lanes = lanes_.get() + static_cast<size_t>(index) * kLanes;
    if (blocks_[index] != block_) {
      blocks_[index] = block_;
      std::fill_n(lanes, kLanes, kUnwritten);
    }
    return lanes;
  }

 private:
  static constexpr uint64_t kUnwritten = 0xdeadbeefdeadbeef;
  std::unique_ptr<uint64_t[]> lanes_;
  std::vector<uint32_t> blocks_;  // by register: the last block that used it, from 1
  uint32_t block_ = 0;
};

class Warp {
 public:
  // `block` changes between blocks of the launch. Then begin() must be called.
  Warp(BlockState& block, int number, int lanes);
  // Moves all lanes to the kernel's first instruction, with unwritten registers.
  void begin();

  BlockState& block() const { return block_; }
  LaneValues values(const Operand& operand) {
    switch (operand.source) {
      case Operand::Source::kRegister:
        return {registers_.lanes(operand.index), 1};
      case Operand::Source::kValue:
        return {&operand.value, 0};
      case Operand::Source::kSpecial:
        break;
    }
    return {specials_[operand.index].data(), 1};
  }
  uint64_t value(const Operand& operand, int lane) { return values(operand)[lane]; }
  uint64_t* lanes_of(int index) { return registers_.lanes(index); }
  void set(int index, int lane, uint64_t value) { lanes_of(index)[lane] = value; }
  bool predicate(int index, int lane) { return (lanes_of(index)[lane] & 1) != 0; }

  uint32_t thread(int lane) const { return static_cast<uint32_t>(number_ * kLanes + lane); }
  uint64_t now_ns() const { return now_ns_; }
  void set_now_ns(uint64_t ns);
  Epoch epoch() const { return {.block = block_.barriers, .warp = barriers_}; }
  std::span<std::byte> local(int lane) {
    return std::span(local_).subspan(lane * local_.size() / kLanes, local_.size() / kLanes);
  }

  // Runs until every lane has ended or waits at a barrier of the block.
  void run();
  Mask at_barrier() const { return at_barrier_; }
  void pass_barrier();

  // Returns text such as "in adamw, block (3, 0, 0), thread 17: st.global.f32 [%rd4], %f2".
  std::string where(int lane) const;

 private:
  bool step(int at, Mask active);
  Mask guarded(const Instruction& instruction, Mask active);
  void go_on_at(int next, Mask lanes);
  void meet(const Instruction& instruction, Mask active);
  void stop_at_barrier(Mask active);
  void shuffle(const Instruction& instruction, Mask active);
  void vote(const Instruction& instruction, Mask active);
  void sleep(const Instruction& instruction, Mask active);
  void require_all_of(const Operand& mask, Mask active);

  BlockState& block_;
  int number_;
  int lanes_;
  uint32_t barriers_ = 0;
  uint64_t now_ns_ = 0;  // [Note: virtual time]
  const Instruction* now_ = nullptr;
  RegisterFile registers_;
  std::array<std::array<uint64_t, kLanes>, kSpecials> specials_{};
  Mask running_ = 0, at_barrier_ = 0;  // in neither: the lane has ended
  std::array<int, kLanes> next_{};     // each lane's next instruction
  std::vector<std::byte> local_;       // the same number of bytes for each lane
};

// Runs arithmetic, moves and conversions in the active lanes. Errors: Objection if the combination
// of opcode and type is unknown.
void compute(Warp& warp, const Instruction& instruction, Mask active);
void convert(Warp& warp, const Instruction& instruction, Mask active);
// Runs a load or a store.
void access(Warp& warp, const Instruction& instruction, Mask active);

// Calls visit(lane) for each lane of the mask, in ascending order.
template <class Visit>
void for_each_lane(Mask mask, Visit visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

}  // namespace fsdp::testing::ptx

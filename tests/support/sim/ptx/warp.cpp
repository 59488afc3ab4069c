#include "support/sim/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kUndefined = 0xdeadbeefdeadbeef;
constexpr auto kUndefinedByte = std::byte{0xcd};

uint64_t dimension(const Dim& dim, int axis) {
  return axis == 0 ? dim.x : axis == 1 ? dim.y : dim.z;
}

Dim place_of(uint64_t number, const Dim& in) {
  return {.x = static_cast<uint32_t>(number % in.x),
          .y = static_cast<uint32_t>(number / in.x % in.y),
          .z = static_cast<uint32_t>(number / in.x / in.y)};
}

}  // namespace

Warp::Warp(BlockState& block, int number, int lanes)
    : block_(block),
      number_(number),
      lanes_(lanes),
      registers_(static_cast<size_t>(block.launch->kernel->registers) * kLanes, kUndefined),
      next_(kLanes, 0),
      states_(kLanes, LaneState::kDone),
      local_(kLanes) {
  std::fill_n(states_.begin(), lanes, LaneState::kRunning);
  const auto bytes = static_cast<size_t>(block.launch->kernel->local_bytes);
  for (int lane = 0; lane < lanes; ++lane) local_[lane].assign(bytes, kUndefinedByte);
}

uint64_t Warp::value(const Operand& operand, int lane) const {
  switch (operand.source) {
    case Operand::Source::kRegister:
      return registers_[operand.index * kLanes + lane];
    case Operand::Source::kValue:
      return operand.value;
    case Operand::Source::kSpecial:
      break;
  }
  const Launch& launch = *block_.launch;
  const int axis = operand.index % 3;
  switch (static_cast<Special>(operand.index - (operand.index < 12 ? axis : 0))) {
    case Special::kThreadX:
      return dimension(place_of(thread(lane), launch.block), axis);
    case Special::kBlockSizeX:
      return dimension(launch.block, axis);
    case Special::kBlockX:
      return dimension(block_.place, axis);
    case Special::kGridX:
      return dimension(launch.grid, axis);
    case Special::kLane:
      return static_cast<uint64_t>(lane);
    default:
      return static_cast<uint64_t>(number_);
  }
}

Mask Warp::in_state(LaneState state) const {
  Mask mask = 0;
  for (int lane = 0; lane < lanes_; ++lane) mask |= states_[lane] == state ? 1U << lane : 0U;
  return mask;
}

void Warp::set_state(Mask lanes, LaneState state) {
  for_each_lane(lanes, [&](int lane) { states_[lane] = state; });
}

// The lanes that are furthest behind go first, so that those that parted meet again where the code
// does.
void Warp::run() {
  while (const Mask running = in_state(LaneState::kRunning)) {
    int at = std::numeric_limits<int>::max();
    for_each_lane(running, [&](int lane) { at = std::min(at, next_[lane]); });
    Mask active = 0;
    for_each_lane(running, [&](int lane) { active |= next_[lane] == at ? 1U << lane : 0U; });
    step(at, active);
  }
}

void Warp::step(int at, Mask active) {
  const Instruction& instruction = block_.launch->kernel->code[at];
  now_ = &instruction;
  for_each_lane(active, [&](int lane) { next_[lane] = at + 1; });
  Mask guarded = active;
  if (instruction.guard >= 0) {
    for_each_lane(active, [&](int lane) {
      if (predicate(instruction.guard, lane) == instruction.guard_negated) guarded &= ~(1U << lane);
    });
  }
  block_.report->instructions += static_cast<uint64_t>(std::popcount(guarded));
  switch (instruction.opcode) {
    case Opcode::kBranch:
      return for_each_lane(guarded, [&](int lane) { next_[lane] = instruction.target; });
    case Opcode::kExit:
      return set_state(guarded, LaneState::kDone);
    case Opcode::kBarrier:
    case Opcode::kWarpBarrier:
    case Opcode::kShuffle:
    case Opcode::kVote:
      return meet(instruction, guarded);
    case Opcode::kFence:
      return;
    case Opcode::kTrap:
      if (guarded == 0) return;
      throw Objection("trap " + where(std::countr_zero(guarded)));
    case Opcode::kLoad:
    case Opcode::kStore:
      return access(*this, instruction, guarded);
    default:
      return compute(*this, instruction, guarded);
  }
}

// What lanes do together. Whoever could still come must be there.
void Warp::meet(const Instruction& instruction, Mask active) {
  if (active == 0) return;
  const int first = std::countr_zero(active);
  switch (instruction.opcode) {
    case Opcode::kBarrier:
      if (active != (in_state(LaneState::kRunning) | in_state(LaneState::kAtBarrier))) {
        throw Objection("a barrier that only some threads of a warp reach, " + where(first));
      }
      return set_state(active, LaneState::kAtBarrier);
    case Opcode::kWarpBarrier:
      require_all_of(instruction.operands.at(0), active);
      ++barriers_;
      return;
    case Opcode::kShuffle:
      return shuffle(instruction, active);
    default:
      return vote(instruction, active);
  }
}

void Warp::require_all_of(const Operand& mask, Mask active) const {
  for_each_lane(active, [&](int lane) {
    const auto asked = static_cast<Mask>(value(mask, lane));
    const Mask there = lanes_ == kLanes ? ~0U : (1U << lanes_) - 1;
    if ((asked >> lane & 1) == 0) {
      throw Objection("a thread that its own mask leaves out, " + where(lane));
    }
    if ((asked & there) != active) {
      throw Objection(fmt::format("lanes {:08x} are asked for and {:08x} are there, {}",
                                  asked & there, active, where(lane)));
    }
  });
}

// PTX ISA, shfl.sync: c holds the clamp in its low bits and the segment mask above.
void Warp::shuffle(const Instruction& instruction, Mask active) {
  require_all_of(instruction.operands.at(3), active);
  uint64_t given[kLanes] = {};
  for_each_lane(
      active, [&](int lane) { given[lane] = value(instruction.operands[0], lane) & 0xffffffffU; });
  for_each_lane(active, [&](int lane) {
    const int by = static_cast<int>(value(instruction.operands[1], lane)) & 31;
    const auto c = static_cast<uint32_t>(value(instruction.operands[2], lane));
    const int segment = static_cast<int>(c >> 8 & 31), clamp = static_cast<int>(c & 31);
    const int lowest = lane & segment;
    const int highest = lowest | (clamp & ~segment);
    int from = lane;
    bool in_range = true;
    switch (instruction.modifier) {
      case Modifier::kLaneUp:
        from = lane - by;
        in_range = from >= highest;
        break;
      case Modifier::kLaneDown:
        from = lane + by;
        in_range = from <= highest;
        break;
      case Modifier::kButterfly:
        from = lane ^ by;
        in_range = from <= highest;
        break;
      default:
        from = lowest | (by & ~segment);
        in_range = from <= highest;
    }
    if (!in_range) from = lane;
    if ((active >> from & 1) == 0) {
      throw Objection(
          fmt::format("a shuffle from lane {}, which is not there, {}", from, where(lane)));
    }
    if (instruction.results[0] >= 0) set(instruction.results[0], lane, given[from]);
    if (instruction.results.size() > 1 && instruction.results[1] >= 0) {
      set(instruction.results[1], lane, in_range ? 1 : 0);
    }
  });
}

void Warp::vote(const Instruction& instruction, Mask active) {
  require_all_of(instruction.operands.at(1), active);
  Mask ayes = 0;
  for_each_lane(active, [&](int lane) {
    ayes |= static_cast<Mask>(value(instruction.operands[0], lane) & 1) << lane;
  });
  uint64_t result = ayes;
  if (instruction.modifier == Modifier::kAll) result = ayes == active ? 1 : 0;
  if (instruction.modifier == Modifier::kAny) result = ayes != 0 ? 1 : 0;
  if (instruction.modifier == Modifier::kUniform) result = ayes == active || ayes == 0 ? 1 : 0;
  for_each_lane(active, [&](int lane) { set(instruction.results.at(0), lane, result); });
}

std::string Warp::where(int lane) const {
  return fmt::format("in {}, block ({}, {}, {}), thread {}: {}", block_.launch->kernel->name,
                     block_.place.x, block_.place.y, block_.place.z, thread(lane), now_->text);
}

namespace {

void run_block(BlockState& block, std::mt19937& random) {
  const Launch& launch = *block.launch;
  const int threads = static_cast<int>(launch.block.count());
  std::vector<Warp> warps;
  for (int first = 0; first < threads; first += kLanes) {
    warps.emplace_back(block, first / kLanes, std::min(kLanes, threads - first));
  }
  std::vector<int> order(warps.size());
  std::iota(order.begin(), order.end(), 0);
  for (;;) {
    if (launch.seed != 0) std::shuffle(order.begin(), order.end(), random);
    for (const int warp : order) warps[warp].run();
    // All that are left have come to the barrier: those that are done count as come.
    bool waiting = false;
    for (Warp& warp : warps) {
      const Mask here = warp.in_state(LaneState::kAtBarrier);
      waiting |= here != 0;
      warp.set_state(here, LaneState::kRunning);
    }
    if (!waiting) return;
    ++block.barriers;
  }
}

}  // namespace

LaunchReport run(const Launch& launch, DeviceMemory& memory) {
  LaunchReport report;
  const Kernel& kernel = *launch.kernel;
  if (launch.block.count() == 0 || launch.block.count() > 1024 || launch.grid.count() == 0) {
    throw Objection(fmt::format("{} blocks of {} threads (kernel {})", launch.grid.count(),
                                launch.block.count(), kernel.name));
  }
  if (launch.grid.count() >= Cell::kSeveral) {
    throw Objection(
        fmt::format("{} blocks, more than the {} whose accesses are told apart "
                    "(kernel {})",
                    launch.grid.count(), Cell::kSeveral, kernel.name));
  }
  for (const uint64_t number : launch.only_blocks) {
    if (number < launch.grid.count()) continue;
    throw Objection(
        fmt::format("block {} of {} (kernel {})", number, launch.grid.count(), kernel.name));
  }
  if (static_cast<int64_t>(launch.parameters.size()) != kernel.parameter_bytes) {
    throw Objection(fmt::format("{} bytes of parameters, {} expected (kernel {})",
                                launch.parameters.size(), kernel.parameter_bytes, kernel.name));
  }
  std::vector<uint64_t> order = launch.only_blocks;
  if (order.empty()) {
    order.resize(launch.grid.count());
    std::iota(order.begin(), order.end(), uint64_t{0});
  }
  std::mt19937 random(launch.seed);
  if (launch.seed != 0) std::shuffle(order.begin(), order.end(), random);
  const auto shared = static_cast<size_t>(kernel.shared_bytes);
  const uint32_t number_of_launch = memory.begin_launch();
  for (const uint64_t number : order) {
    BlockState block{.launch = &launch,
                     .memory = &memory,
                     .report = &report,
                     .launch_number = number_of_launch,
                     .place = place_of(number, launch.grid),
                     .number = static_cast<uint32_t>(number),
                     .shared = std::vector<std::byte>(shared, kUndefinedByte),
                     .shared_shadow = Shadow(0, shared, false)};
    run_block(block, random);
  }
  report.read = memory.touched(false);
  report.written = memory.touched(true);
  return report;
}

}  // namespace fsdp::testing::ptx

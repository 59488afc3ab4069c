#include "simulator/ptx/warp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <random>

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kLongestSleep = 1'000'000;  // ns
constexpr auto kUndefinedByte = std::byte{0xcd};

std::array<uint64_t, 3> axes_of(const Dim& dim) { return {dim.x, dim.y, dim.z}; }

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
      registers_(block.launch->kernel->registers),
      local_(static_cast<size_t>(block.launch->kernel->local_bytes) * kLanes) {}

void Warp::begin() {
  const Launch& launch = *block_.launch;
  // Unwritten registers and local memory contain a fixed pattern, so that a result cannot depend on
  // an earlier block.
  registers_.begin_block();
  std::fill(local_.begin(), local_.end(), kUndefinedByte);
  const auto special = [&](Special first, int axis) -> auto& {
    return specials_[static_cast<size_t>(first) + static_cast<size_t>(axis)];
  };
  for (int axis = 0; axis < 3; ++axis) {
    for (int lane = 0; lane < lanes_; ++lane) {
      special(Special::kThreadX, axis)[lane] = axes_of(place_of(thread(lane), launch.block))[axis];
    }
    special(Special::kBlockSizeX, axis).fill(axes_of(launch.block)[axis]);
    special(Special::kBlockX, axis).fill(axes_of(block_.place)[axis]);
    special(Special::kGridX, axis).fill(axes_of(launch.grid)[axis]);
  }
  std::iota(special(Special::kLane, 0).begin(), special(Special::kLane, 0).end(), uint64_t{0});
  special(Special::kWarp, 0).fill(static_cast<uint64_t>(number_));
  set_now_ns(launch.begin_ns);
  barriers_ = 0;
  running_ = lanes_ == kLanes ? ~Mask{0} : (Mask{1} << lanes_) - 1;
  at_barrier_ = 0;
  next_.fill(0);
}

void Warp::set_now_ns(uint64_t ns) {
  now_ns_ = ns;
  specials_[static_cast<size_t>(Special::kClock)].fill(ns);
}

void Warp::go_on_at(int next, Mask lanes) {
  for_each_lane(lanes, [&](int lane) { next_[lane] = next; });
}

// Runs the lanes that are furthest behind first, so that diverged lanes reconverge at the place
// where their code paths join. The lanes run together until they diverge, or until they reach an
// instruction at which other lanes wait.
void Warp::run() {
  while (running_ != 0) {
    int at = std::numeric_limits<int>::max(), others = at;
    Mask active = 0;
    for_each_lane(running_, [&](int lane) { at = std::min(at, next_[lane]); });
    for_each_lane(running_, [&](int lane) {
      next_[lane] == at ? void(active |= Mask{1} << lane)
                        : void(others = std::min(others, next_[lane]));
    });
    bool is_straight = true;
    while (is_straight && at < others) is_straight = step(at++, active);
    if (is_straight) go_on_at(at, active);
  }
}

Mask Warp::guarded(const Instruction& instruction, Mask active) {
  if (instruction.guard < 0) return active;
  const uint64_t* const predicates = lanes_of(instruction.guard);
  Mask guarded = 0;
  for_each_lane(active, [&](int lane) {
    const bool runs = (predicates[lane] & 1) != (instruction.guard_negated ? 1U : 0U);
    guarded |= static_cast<Mask>(runs) << lane;
  });
  return guarded;
}

// Runs one instruction. Returns false if next_ already holds the next instruction of each active
// lane.
bool Warp::step(int at, Mask active) {
  const Instruction& instruction = block_.launch->kernel->code[at];
  now_ = &instruction;
  const Mask guarded = this->guarded(instruction, active);
  block_.report->instructions += static_cast<uint64_t>(std::popcount(guarded));
  switch (instruction.opcode) {
    case Opcode::kBranch:
      go_on_at(at + 1, active & ~guarded);
      go_on_at(instruction.target, guarded);
      return false;
    case Opcode::kExit:
      go_on_at(at + 1, active & ~guarded);
      running_ &= ~guarded;
      return false;
    case Opcode::kBarrier:
      go_on_at(at + 1, active);
      if (guarded != 0) stop_at_barrier(guarded);
      return false;
    case Opcode::kWarpBarrier:
    case Opcode::kShuffle:
    case Opcode::kVote:
      if (guarded != 0) meet(instruction, guarded);
      return true;
    case Opcode::kFence:
      return true;
    case Opcode::kSleep:
      sleep(instruction, guarded);
      return true;
    case Opcode::kTrap:
      if (guarded == 0) return true;
      throw Objection("trap " + where(std::countr_zero(guarded)));
    case Opcode::kLoad:
    case Opcode::kStore:
      access(*this, instruction, guarded);
      return true;
    default:
      compute(*this, instruction, guarded);
      return true;
  }
}

// Continues after a barrier that all remaining lanes have reached. Lanes that have ended count as
// arrived.
void Warp::pass_barrier() {
  running_ |= at_barrier_;
  at_barrier_ = 0;
}

void Warp::stop_at_barrier(Mask active) {
  if (active != (running_ | at_barrier_)) {
    throw Objection("a barrier that only some threads of a warp reach, " +
                    where(std::countr_zero(active)));
  }
  running_ &= ~active;
  at_barrier_ |= active;
}

// Runs an instruction that several lanes execute together. Every lane in the instruction's mask
// must be active.
void Warp::meet(const Instruction& instruction, Mask active) {
  switch (instruction.opcode) {
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

void Warp::require_all_of(const Operand& mask, Mask active) {
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

// Source: PTX ISA, shfl.sync. The low bits of operand c are the clamp; the segment mask is above
// them.
void Warp::shuffle(const Instruction& instruction, Mask active) {
  require_all_of(instruction.operands.at(3), active);
  // Reads all lanes first, because the result register may be the register that is sent.
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

void Warp::sleep(const Instruction& instruction, Mask active) {
  uint64_t longest = 0;
  for_each_lane(active, [&](int lane) {
    longest = std::max(longest, value(instruction.operands.at(0), lane) & 0xffffffffU);
  });
  set_now_ns(now_ns_ + std::min(longest, kLongestSleep));
}

std::string Warp::where(int lane) const {
  return fmt::format("in {}, block ({}, {}, {}), thread {}: {}", block_.launch->kernel->name,
                     block_.place.x, block_.place.y, block_.place.z, thread(lane), now_->text);
}

namespace {

// Runs one block after another on the same warps, so that registers are allocated only once.
class Blocks {
 public:
  Blocks(BlockState& block, std::mt19937& random) : block_(block), random_(random) {
    const int threads = static_cast<int>(block.launch->block.count());
    for (int first = 0; first < threads; first += kLanes) {
      warps_.emplace_back(block, first / kLanes, std::min(kLanes, threads - first));
    }
  }

  void run() {
    std::vector<int> order(warps_.size());
    std::iota(order.begin(), order.end(), 0);
    for (Warp& warp : warps_) warp.begin();
    for (;;) {
      if (block_.launch->seed != 0) std::shuffle(order.begin(), order.end(), random_);
      for (const int warp : order) warps_[warp].run();
      // Each warp has ended or waits at the barrier. The waiting ones continue at the latest of
      // their times.
      bool waiting = false;
      uint64_t latest = 0;
      for (const Warp& warp : warps_) latest = std::max(latest, warp.now_ns());
      block_.report->end_ns = std::max(block_.report->end_ns, latest);
      for (Warp& warp : warps_) {
        warp.set_now_ns(latest);
        waiting |= warp.at_barrier() != 0;
        warp.pass_barrier();
      }
      if (!waiting) return;
      ++block_.barriers;
    }
  }

 private:
  BlockState& block_;
  std::mt19937& random_;
  std::vector<Warp> warps_;
};

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
  // Accesses of earlier launches do not count here, because streams order the launches.
  const uint32_t number_of_launch = memory.begin_launch();
  BlockState block{.launch = &launch,
                   .memory = &memory,
                   .report = &report,
                   .launch_number = number_of_launch,
                   .shared_shadow = Shadow(0, shared, false)};
  Blocks blocks(block, random);
  for (const uint64_t number : order) {
    block.place = place_of(number, launch.grid);
    block.number = static_cast<uint32_t>(number);
    block.barriers = 1;
    block.shared.assign(shared, kUndefinedByte);
    block.shared_shadow = Shadow(0, shared, false);
    blocks.run();
  }
  report.read = memory.touched(false);
  report.written = memory.touched(true);
  return report;
}

}  // namespace fsdp::testing::ptx

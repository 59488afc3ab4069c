// Loads and stores. Finds the memory of an address and checks the access.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "simulator/ptx/warp.h"

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kSectorBytes = 32;

struct Target {
  Space space = Space::kGlobal;
  uint64_t address = 0;  // address within the space
};

// Returns the space of an address. Shared and local addresses have 32 bits, so they may wrap
// around.
Target target_of(Space space, uint64_t address) {
  if (space == Space::kShared || space == Space::kLocal) return {space, address & 0xffffffffU};
  if (space != Space::kGeneric && space != Space::kGlobal) return {space, address};
  if (address >= kSharedWindow) return {Space::kShared, address - kSharedWindow};
  if (address >= kLocalWindow) return {Space::kLocal, address - kLocalWindow};
  if (address >= kParameterWindow) return {Space::kParameter, address - kParameterWindow};
  return {Space::kGlobal, address};
}

class Access {
 public:
  Access(Warp& warp, int lane, int64_t bytes, bool writes)
      : warp_(warp), block_(warp.block()), lane_(lane), bytes_(bytes), writes_(writes) {}

  std::byte* check(const Target& target) {
    if (target.address % static_cast<uint64_t>(bytes_) != 0) {
      object(fmt::format("a misaligned access of {} bytes", bytes_));
    }
    switch (target.space) {
      case Space::kShared:
        return shared(target.address);
      case Space::kLocal:
        return inside(warp_.local(lane_), target.address, "local memory");
      case Space::kParameter:
        if (writes_) object("a write to parameters");
        return inside({const_cast<std::byte*>(block_.launch->parameters.data()),
                       block_.launch->parameters.size()},
                      target.address, "parameters");
      default:
        return global(target.address);
    }
  }

 private:
  [[noreturn]] void object(const std::string& what) const {
    throw Objection(fmt::format("{}, {}", what, warp_.where(lane_)));
  }

  std::byte* inside(std::span<std::byte> memory, uint64_t at, const char* name) const {
    if (at + static_cast<uint64_t>(bytes_) > memory.size()) {
      object(fmt::format("{} bytes at {} of {}, which has {}", bytes_, at, name, memory.size()));
    }
    return memory.data() + at;
  }

  std::byte* shared(uint64_t at) {
    std::byte* data = inside(block_.shared, at, "shared memory");
    touch(block_.shared_shadow, at, 0, "shared memory");
    return data;
  }

  std::byte* global(uint64_t address) {
    Allocation* allocation = block_.memory->find(address, bytes_);
    if (allocation == nullptr) object(block_.memory->describe(address, bytes_));
    if (allocation->only_read) {
      if (writes_) object(allocation->refused_write());
    } else {
      Shadow& shadow = block_.memory->touch(*allocation, address);
      touch(shadow, address, allocation->begin, allocation->name);
      shadow.note(address, bytes_, writes_);
    }
    ++(writes_ ? block_.report->stores : block_.report->loads);
    return reinterpret_cast<std::byte*>(address);
  }

  // Checks and records an access. The access is aligned, so one shadow contains it. `first` is the
  // address of byte 0.
  void touch(Shadow& shadow, uint64_t at, uint64_t first, const std::string& name) {
    if (!writes_ && !shadow.is_defined(at, bytes_)) {
      object(fmt::format("a read of byte {} of {}, which nobody has written",
                         first_undefined(shadow, at) - first, name));
    }
    if (writes_) shadow.define(at, bytes_);
    if (bytes_ == 1) return note(shadow.cell(at), at % 2 == 0 ? 1 : 2, at - first, name);
    for (uint64_t byte = at; byte < at + static_cast<uint64_t>(bytes_); byte += 2) {
      note(shadow.cell(byte), 3, byte - first, name);
    }
  }

  static uint64_t first_undefined(const Shadow& shadow, uint64_t at) {
    while (shadow.is_defined(at, 1)) ++at;
    return at;
  }

  // Returns true if the access of another thread at epoch `at_once` has ended before this access,
  // in every schedule. The upper bits of `at_once` count the block's barriers. The lower 12 bits
  // count the warp's barriers since the last one of the block (Epoch).
  bool is_ordered(uint32_t block, int16_t thread, uint32_t at_once) const {
    if (block != block_.number) return false;
    if (thread == me()) return true;
    const uint32_t now = warp_.epoch().at_once();
    if (at_once >> 12 != now >> 12) return true;
    const bool same_warp = thread / kLanes == me() / kLanes;
    return same_warp && at_once != now;
  }

  // A cell of an earlier launch counts as empty. Each cell keeps the last writer, and the readers
  // since that write.
  void note(Cell& cell, uint8_t bytes, uint64_t at, const std::string& name) {
    if (cell.launch != block_.launch_number) cell = {.launch = block_.launch_number};
    const uint32_t now = warp_.epoch().at_once();
    const bool after_write = cell.writer_block != Cell::kNobody && (cell.written & bytes) != 0;
    if (after_write && !is_ordered(cell.writer_block, cell.writer, cell.written_at)) {
      object(
          fmt::format("a race: it {} byte {} of {}, which thread {} of block {} writes, and no "
                      "barrier is between",
                      writes_ ? "writes" : "reads", at, name, cell.writer, cell.writer_block));
    }
    if (!writes_) return note_read(cell, bytes, now);
    const bool after_read = cell.reader_block != Cell::kNobody && (cell.read & bytes) != 0;
    // If several threads have read, only a barrier of the block orders the write after the reads.
    const bool several =
        cell.reader_block == Cell::kSeveral || cell.reader == Cell::kSeveralThreads;
    const bool ordered =
        several ? is_over(cell, now) : is_ordered(cell.reader_block, cell.reader, cell.read_at);
    if (after_read && !ordered) {
      object(
          fmt::format("a race: it writes byte {} of {}, which another thread reads, and no "
                      "barrier is between",
                      at, name));
    }
    const bool mine = cell.writer_block == block_.number && cell.writer == me();
    cell.written = mine ? cell.written | bytes : bytes;
    cell.writer_block = block_.number;
    cell.writer = me();
    cell.written_at = now;
  }

  void note_read(Cell& cell, uint8_t bytes, uint32_t now) const {
    const bool mine = cell.reader_block == block_.number && cell.reader == me();
    // Reads before the block's last barrier need not be kept, because a later write is ordered
    // after them.
    const bool alone = cell.reader_block == Cell::kNobody || mine || is_over(cell, now);
    const bool same_block = cell.reader_block == block_.number;
    cell.read = alone && !mine ? bytes : cell.read | bytes;
    cell.reader_block = alone || same_block ? block_.number : Cell::kSeveral;
    cell.reader = alone ? me() : Cell::kSeveralThreads;
    cell.read_at = now;
  }

  // Returns true if only this block has read, and only before its last barrier.
  bool is_over(const Cell& cell, uint32_t now) const {
    return cell.reader_block == block_.number && cell.read_at >> 12 != now >> 12;
  }

  int16_t me() const { return static_cast<int16_t>(warp_.thread(lane_)); }

  Warp& warp_;
  BlockState& block_;
  int lane_;
  int64_t bytes_;
  bool writes_;
};

int64_t sign_extended(uint64_t bits, int width) {
  return static_cast<int64_t>(bits << (64 - width)) >> (64 - width);
}

void load(Warp& warp, const Instruction& instruction, int lane, const std::byte* from) {
  const int bytes = instruction.type.bytes();
  for (size_t i = 0; i < instruction.results.size(); ++i, from += bytes) {
    uint64_t bits = 0;
    std::memcpy(&bits, from, static_cast<size_t>(bytes));
    if (instruction.type.kind == Kind::kSigned) {
      bits = static_cast<uint64_t>(sign_extended(bits, instruction.type.bits));
    }
    if (instruction.results[i] >= 0) warp.set(instruction.results[i], lane, bits);
  }
}

// If the instruction loads a kernel parameter, loads the value once for all lanes. Most kernels
// begin with such loads, so this saves time.
bool load_for_all(Warp& warp, const Instruction& instruction, Mask active,
                  const LaneValues& addresses, int64_t bytes) {
  if (!addresses.is_one() || instruction.space != Space::kParameter || active != ~Mask{0}) {
    return false;
  }
  const std::byte* from =
      Access(warp, 0, bytes, false)
          .check({Space::kParameter, addresses[0] + static_cast<uint64_t>(instruction.offset)});
  load(warp, instruction, 0, from);
  for (const int result : instruction.results) {
    if (result < 0) continue;
    uint64_t* const lanes = warp.lanes_of(result);
    std::fill_n(lanes, kLanes, lanes[0]);
  }
  return true;
}

void store(Warp& warp, const Instruction& instruction, int lane, std::byte* to) {
  const int bytes = instruction.type.bytes();
  for (size_t i = 1; i < instruction.operands.size(); ++i, to += bytes) {
    const uint64_t bits = warp.value(instruction.operands[i], lane);
    std::memcpy(to, &bits, static_cast<size_t>(bytes));
  }
}

}  // namespace

void access(Warp& warp, const Instruction& instruction, Mask active) {
  const bool writes = instruction.opcode == Opcode::kStore;
  const size_t count = writes ? instruction.operands.size() - 1 : instruction.results.size();
  const int64_t bytes = static_cast<int64_t>(count) * instruction.type.bytes();
  const LaneValues addresses = warp.values(instruction.operands.at(0));
  if (!writes && load_for_all(warp, instruction, active, addresses, bytes)) return;
  std::array<uint64_t, kLanes> sectors;  // an aligned access is within one sector
  auto last = sectors.begin();
  for_each_lane(active, [&](int lane) {
    const Target target =
        target_of(instruction.space, addresses[lane] + static_cast<uint64_t>(instruction.offset));
    std::byte* data = Access(warp, lane, bytes, writes).check(target);
    writes ? store(warp, instruction, lane, data) : load(warp, instruction, lane, data);
    if (target.space == Space::kGlobal) *last++ = target.address / kSectorBytes;
  });
  const uint64_t global_bytes = static_cast<uint64_t>(bytes * (last - sectors.begin()));
  if (!std::is_sorted(sectors.begin(), last)) std::sort(sectors.begin(), last);
  warp.block().report->sectors +=
      static_cast<uint64_t>(std::unique(sectors.begin(), last) - sectors.begin());
  warp.block().report->least_sectors += (global_bytes + kSectorBytes - 1) / kSectorBytes;
}

}  // namespace fsdp::testing::ptx

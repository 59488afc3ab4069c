// Loads and stores: where an address lies, and what may not happen there.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "support/sim/ptx/warp.h"

namespace fsdp::testing::ptx {
namespace {

constexpr uint64_t kSectorBytes = 32;

struct Target {
  Space space = Space::kGlobal;
  uint64_t address = 0;  // in its space
};

Target target_of(Space space, uint64_t address) {
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
        return inside(const_cast<std::vector<std::byte>&>(block_.launch->parameters),
                      target.address, "parameters");
      default:
        return global(target.address);
    }
  }

 private:
  [[noreturn]] void object(const std::string& what) const {
    throw Objection(fmt::format("{}, {}", what, warp_.where(lane_)));
  }

  std::byte* inside(std::vector<std::byte>& memory, uint64_t at, const char* name) const {
    if (at + static_cast<uint64_t>(bytes_) > memory.size()) {
      object(fmt::format("{} bytes at {} of {}, which has {}", bytes_, at, name, memory.size()));
    }
    return memory.data() + at;
  }

  std::byte* shared(uint64_t at) {
    std::byte* data = inside(block_.shared, at, "shared memory");
    touch(block_.shared_defined, block_.shared_cells, at, "shared memory");
    return data;
  }

  std::byte* global(uint64_t address) {
    Allocation* allocation = block_.memory->find(address, bytes_);
    if (allocation == nullptr) {
      object(fmt::format("{} bytes at {:#x}, outside of device memory", bytes_, address));
    }
    touch(allocation->defined, allocation->cells, address - allocation->begin, allocation->name);
    ++(writes_ ? block_.report->stores : block_.report->loads);
    return reinterpret_cast<std::byte*>(address);
  }

  void touch(std::vector<bool>& defined, std::vector<Cell>& cells, uint64_t at,
             const std::string& name) {
    for (uint64_t byte = at; byte < at + static_cast<uint64_t>(bytes_); ++byte) {
      if (!writes_ && !defined[byte]) {
        object(fmt::format("a read of byte {} of {}, which nobody has written", byte, name));
      }
      if (writes_) defined[byte] = true;
    }
    if (bytes_ == 1) return note(cells[at / 2], at % 2 == 0 ? 1 : 2, at, name);
    for (int64_t byte = 0; byte < bytes_; byte += 2) {
      note(cells[(at + byte) / 2], 3, at + byte, name);
    }
  }

  // Whether what `other` did at that time is over for this thread, whatever the schedule.
  bool is_ordered(int32_t other, uint32_t at_once) const {
    if (other == me()) return true;
    const int64_t per_block = static_cast<int64_t>(block_.launch->block.count());
    if (other / per_block != me() / per_block) return false;
    const uint32_t now = warp_.epoch().at_once();
    if (at_once >> 12 != now >> 12) return true;
    const bool same_warp = other % per_block / kLanes == me() % per_block / kLanes;
    return same_warp && at_once != now;
  }

  void note(Cell& cell, uint8_t bytes, uint64_t at, const std::string& name) {
    if (cell.launch != block_.launch_number) cell = {.launch = block_.launch_number};
    const uint32_t now = warp_.epoch().at_once();
    const bool after_write = cell.writer != Cell::kNobody && (cell.written & bytes) != 0;
    if (after_write && !is_ordered(cell.writer, cell.written_at)) {
      object(
          fmt::format("a race: it {} byte {} of {}, which thread {} of the launch writes, and "
                      "no barrier is between",
                      writes_ ? "writes" : "reads", at, name, cell.writer));
    }
    if (!writes_) return note_read(cell, bytes, now);
    const bool after_read = cell.reader != Cell::kNobody && (cell.read & bytes) != 0;
    const bool ordered =
        cell.reader == Cell::kSeveral ? is_over(cell, now) : is_ordered(cell.reader, cell.read_at);
    if (after_read && !ordered) {
      object(
          fmt::format("a race: it writes byte {} of {}, which another thread reads, and no "
                      "barrier is between",
                      at, name));
    }
    cell.written = cell.writer == me() ? cell.written | bytes : bytes;
    cell.writer = me();
    cell.written_at = now;
  }

  void note_read(Cell& cell, uint8_t bytes, uint32_t now) const {
    const bool alone = cell.reader == Cell::kNobody || cell.reader == me() || is_over(cell, now);
    cell.read = alone && cell.reader != me() ? bytes : cell.read | bytes;
    cell.reader_block = alone || cell.reader_block == my_block() ? my_block() : Cell::kSeveral;
    cell.reader = alone ? me() : Cell::kSeveral;
    cell.read_at = now;
  }

  // All reads were this block's, before its last barrier.
  bool is_over(const Cell& cell, uint32_t now) const {
    return cell.reader_block == my_block() && cell.read_at >> 12 != now >> 12;
  }

  int32_t my_block() const {
    return static_cast<int32_t>(block_.first_thread / block_.launch->block.count());
  }
  int32_t me() const { return static_cast<int32_t>(block_.first_thread + warp_.thread(lane_)); }

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

void store(const Warp& warp, const Instruction& instruction, int lane, std::byte* to) {
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
  std::set<uint64_t> sectors;
  uint64_t global_bytes = 0;
  for_each_lane(active, [&](int lane) {
    const Target target =
        target_of(instruction.space, warp.value(instruction.operands.at(0), lane) +
                                         static_cast<uint64_t>(instruction.offset));
    std::byte* data = Access(warp, lane, bytes, writes).check(target);
    writes ? store(warp, instruction, lane, data) : load(warp, instruction, lane, data);
    if (target.space != Space::kGlobal) return;
    global_bytes += static_cast<uint64_t>(bytes);
    for (uint64_t at = target.address; at < target.address + static_cast<uint64_t>(bytes);
         at += std::min<uint64_t>(kSectorBytes, static_cast<uint64_t>(bytes))) {
      sectors.insert(at / kSectorBytes);
    }
  });
  warp.block().report->sectors += sectors.size();
  warp.block().report->least_sectors += (global_bytes + kSectorBytes - 1) / kSectorBytes;
}

}  // namespace fsdp::testing::ptx

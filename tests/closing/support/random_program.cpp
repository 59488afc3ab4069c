#include "closing/support/random_program.h"

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

#include "closing/support/program_reach.h"
#include "closing/support/program_run.h"
#include "support/long_run.h"

namespace fsdp::testing {
namespace {

class Generator {
 public:
  Generator(uint64_t seed, Boundaries boundaries, int layers_of_unit)
      : random_(seed), boundaries_(boundaries) {
    program_.layers_of_unit = layers_of_unit;
  }

  Program make() {
    declare_parts();
    changes_inputs_.resize(program_.parts.size());
    for (int part = static_cast<int>(program_.parts.size()) - 1; part > 0; --part) write_part(part);
    write_root();
    const int plan = below(10);
    if (plan >= 5) program_.plan = static_cast<Plan>(plan - 4);
    if (chance(20)) program_.throws_at = below(6);
    program_.evaluates = chance(25);
    program_.has_twin = chance(20);
    open_gates_until_ranks_agree();
    return std::move(program_);
  }

 private:
  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }

  // Returns a name of 10 to 200 bytes that ends in the number. Most names begin with the same
  // bytes.
  std::string random_name(int number) {
    const std::string end = "u" + std::to_string(number);
    return std::string(10 + below(191) - end.size(), chance(80) ? 'x' : 'y') + end;
  }

  // Makes a gate that is closed for some ranks and steps, but not for all.
  int random_gate(int percent) {
    if (!chance(percent)) return -1;
    uint32_t closed = 0;
    for (int step = 0; step < kProgramSteps; ++step) {
      for (int rank = 0; rank < kProgramRanks; ++rank) {
        if (chance(40)) closed |= Gate::bit(step, rank);
      }
    }
    return program_.new_gate(closed);
  }

  void declare_parts() {
    program_.parts.push_back({.name = "root", .weights = 1, .inputs = 2, .ops = {}, .outputs = {}});
    depth_.push_back(0);
    const int units = 3 + below(4);
    for (int i = 1; i <= units; ++i) {
      int parent = chance(55) ? 0 : below(i);
      if (depth_[parent] == 3) parent = 0;
      program_.parts.push_back({.name = random_name(i),
                                .parent = parent,
                                .frozen = chance(8),
                                .has_holes = chance(20),
                                .weights = chance(12) ? 0 : 1 + below(2),
                                .inputs = 1 + below(2),
                                .ops = {},
                                .outputs = std::vector<int>(1 + below(2))});
      depth_.push_back(depth_[parent] + 1);
    }
    if (chance(30)) {
      embedding_ = static_cast<int>(program_.parts.size());
      program_.parts.push_back(
          {.name = "embedding", .weights = 1, .ops = {}, .outputs = std::vector<int>(1)});
      depth_.push_back(1);
    }
  }

  // Returns the parts that `part` may call: its children, and sometimes a unit that is not its
  // child.
  std::vector<int> callees(int part) {
    std::vector<int> result;
    for (int i = part + 1; i < static_cast<int>(program_.parts.size()); ++i) {
      if (i == embedding_) continue;
      if (program_.parts[i].parent == part || (depth_[i] == 1 && chance(8))) result.push_back(i);
    }
    return result;
  }

  // Returns one of the registers. Recent ones are more likely.
  int pick(const std::vector<int>& registers) {
    const int count = static_cast<int>(registers.size());
    return registers[chance(60) ? count - 1 - below(std::min(count, 2)) : below(count)];
  }

  int call(PartWriter& w, const std::vector<int>& from, int callee, int gate = -1) {
    std::vector<int> args;
    for (int i = 0; i < program_.parts[callee].inputs; ++i) args.push_back(pick(from));
    const bool again = chance(30) && !changes_inputs_[callee];
    return again ? w.recompute(callee, args, gate) : w.call(callee, args, gate);
  }
  void append(const PartWriter& w, std::vector<int>& registers, int first) {
    for (int i = first; i < w.registers(); ++i) registers.push_back(i);
  }

  int random_op(PartWriter& w, const std::vector<int>& from, int weights) {
    switch (below(9)) {
      case 0:
      case 1:
        return w.linear(pick(from), weights > 0 ? below(weights) : 0, random_gate(40));
      case 2:
        return w.tanh(pick(from));
      case 3:
        return w.view(pick(from));
      case 4:
        return w.write({OpKind::kHalves, {pick(from), pick(from)}});
      case 5:
        return w.inplace(w.add(pick(from), pick(from)));
      case 6:
        return w.state(pick(from));
      default:
        return w.add(pick(from), pick(from), random_gate(35));
    }
  }

  void write_part(int index) {
    PartWriter w(program_, index);
    if (index == embedding_) return w.returns({w.write({OpKind::kEmbed, {0}})});
    const int weights = program_.parts[index].weights;
    std::vector<int> registers;
    append(w, registers, 0);
    changes_inputs_[index] = chance(6);
    if (changes_inputs_[index]) registers.push_back(w.inplace(chance(50) ? 0 : w.view(0)));
    std::vector<int> to_call = callees(index);
    for (const int callee : to_call) {
      changes_inputs_[index] = changes_inputs_[index] || changes_inputs_[callee];
    }
    const int ops = 1 + below(3);
    for (int i = 0; i < ops || !to_call.empty(); ++i) {
      if (!to_call.empty() && chance(60)) {
        append(w, registers, call(w, registers, to_call.back(), dropped_layer()));
        if (chance(80)) to_call.pop_back();
      } else {
        append(w, registers, random_op(w, registers, weights));
      }
    }
    std::vector<int> outputs;
    const size_t wanted = program_.parts[index].outputs.size();
    for (size_t i = 0; i < wanted; ++i) outputs.push_back(random_output(w, registers));
    w.returns(outputs);
  }

  int random_output(PartWriter& w, const std::vector<int>& registers) {
    const int what = below(20);
    if (what == 0) return 0;  // returns its input
    if (what <= 3) return w.choose(pick(registers), 0, random_gate(90));
    if (what <= 6) return w.view(pick(registers));
    if (what <= 8) return pick(registers);
    return w.add(pick(registers), w.linear(pick(registers), 0, random_gate(30)));
  }

  // Adds a segment that makes two calls. The root runs it in a checkpoint.
  int add_segment(const std::vector<int>& units) {
    Part segment{.name = "segment", .is_unit = false, .weights = 0, .ops = {}, .outputs = {}};
    program_.parts.push_back(segment);
    depth_.push_back(0);
    const int index = static_cast<int>(program_.parts.size()) - 1;
    PartWriter w(program_, index);
    std::vector<int> registers = {0};
    for (int i = 0; i < 2; ++i) {
      const int unit = units[below(static_cast<int>(units.size()))];
      if (!changes_inputs_[unit]) append(w, registers, call(w, registers, unit));
    }
    w.returns({registers.back()});
    return index;
  }

  void write_root() {
    const std::vector<int> units = callees(0);
    if (chance(25) && !units.empty()) segment_ = add_segment(units);
    PartWriter w(program_, 0);
    std::vector<int> registers = {w.linear(0)};
    if (chance(15)) registers.push_back(0);  // the batch itself; it has no gradient
    const int ops = 4 + below(7);
    for (int i = 0; i < ops; ++i) {
      const int what = below(100);
      if (what < 60 && !units.empty()) {
        const int unit = units[below(static_cast<int>(units.size()))];
        append(w, registers, call(w, registers, unit, chance(12) ? skip_gate() : dropped_layer()));
        if (chance(12)) registers.push_back(w.inplace(registers.back()));
      } else if (what < 66 && segment_ >= 0) {
        append(w, registers, w.recompute(segment_, {pick(registers)}));
      } else if (what < 72 && embedding_ >= 0) {
        append(w, registers, chance(50) ? w.call(embedding_, {1}) : w.recompute(embedding_, {1}));
      } else {
        append(w, registers, random_op(w, registers, 1));
      }
    }
    int sum = w.linear(registers.back(), 0, random_gate(20));
    for (int i = 0; i < 3; ++i) sum = w.add(sum, pick(registers), random_gate(40));
    w.returns(chance(20) ? std::vector{sum, w.tanh(registers.back())} : std::vector{sum});
  }

  // Makes a gate that skips a layer on some ranks, if its unit has other layers.
  int dropped_layer() { return program_.layers_of_unit > 1 ? random_gate(30) : -1; }
  // Makes a gate that skips a unit on all ranks in one step.
  int skip_gate() {
    uint32_t closed = 0;
    for (int rank = 0; rank < kProgramRanks; ++rank) closed |= Gate::bit(1, rank);
    return program_.new_gate(closed);
  }

  bool ranks_agree() const {
    for (int step = 0; step < kProgramSteps; ++step) {
      const Reach first = reach_of(program_, step, 0, boundaries_);
      for (int rank = 0; rank < kProgramRanks; ++rank) {
        const Reach reach = reach_of(program_, step, rank, boundaries_);
        if (!reach.loss_requires_grad || reach.fired != first.fired) return false;
      }
    }
    return true;
  }
  void open_gates_until_ranks_agree() {
    std::vector<int> order;
    for (size_t i = 0; i < program_.gates.size(); ++i) order.push_back(static_cast<int>(i));
    while (!order.empty() && !ranks_agree()) {
      const int at = below(static_cast<int>(order.size()));
      program_.gates[order[at]].closed = 0;
      order.erase(order.begin() + at);
    }
  }

  std::mt19937_64 random_;
  const Boundaries boundaries_;
  Program program_;
  std::vector<int> depth_;
  // By part: true if it changes an input in place, so that it cannot be recomputed.
  std::vector<char> changes_inputs_;
  int embedding_ = -1, segment_ = -1;
};

bool changes_passed_through(const Program& program) {
  for (int step = 0; step < kProgramSteps; ++step) {
    for (int rank = 0; rank < kProgramRanks; ++rank) {
      if (reach_of(program, step, rank).changes_passed_through) return true;
    }
  }
  return false;
}

}  // namespace

Program random_program(uint64_t seed, Boundaries boundaries, int layers_of_unit) {
  for (uint64_t attempt = 0;; ++attempt) {
    Program program = Generator(seed + (attempt << 40), boundaries, layers_of_unit).make();
    if (!changes_passed_through(program)) return program;
  }
}

FuzzRange fuzz_range(int64_t of_long_run) {
  const auto number = [](const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::stoll(text);
  };
  return {.wanted = number("FSDP_FUZZ_PROGRAMS", is_long_run() ? of_long_run : of_long_run / 5),
          .first = number("FSDP_FUZZ_SEED", 1)};
}

}  // namespace fsdp::testing

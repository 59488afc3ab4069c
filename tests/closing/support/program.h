// Small training programs as data. A test runs a program on the plain model and on the engine.
// program_reach.h derives the program's graph without tensors. Values are matrices of shape [rows,
// width] in numbered registers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::testing {

enum class OpKind : uint8_t {
  kLinear,   // args: x; index: weight. Closed gate: the weight is not used.
  kEmpty,    // args: x. kLinear of a unit without weights: its parameter is empty.
  kEmbed,    // args: tokens; index: weight
  kAdd,      // args: a, b. Closed gate: b is not used.
  kTanh,     // args: a
  kView,     // args: a. A view of a view.
  kHalves,   // args: a, b. Two views of one new base.
  kInplace,  // args: a. Changes it and all values that share its memory.
  kChoose,   // args: a, b. Closed gate: b itself, not a.
  kDetach,   // args: a. Closed gate: without its graph.
  kState,    // args: a. Changes the unit's buffer; reads it, the training flag and the grad mode.
  kCall,     // args: inputs; index: part. Closed gate: skipped, the first input instead.
};

struct Op {
  OpKind kind = OpKind::kAdd;
  std::vector<int> args;
  int index = 0;
  int gate = -1;
  bool recompute = false;
};

// A condition that is false (a closed gate) for some ranks in some steps.
struct Gate {
  uint32_t closed = 0;
  static uint32_t bit(int step, int rank) { return 1U << (8 * step + rank); }
  bool is_open(int step, int rank) const { return (closed & bit(step, rank)) == 0; }
};

// A unit, or a segment of a unit. A segment uses the weights of the unit that calls it.
struct Part {
  std::string name;
  int parent = 0;  // in the module tree
  bool is_unit = true;
  bool frozen = false;
  bool has_holes = false;  // has one more input and one more output, both undefined
  int weights = 2;         // 0: the unit has one empty parameter
  int inputs = 1;
  std::vector<Op> ops;
  std::vector<int> outputs;  // registers
};

enum class Plan : uint8_t {
  kOneForward,
  kTwoForwardsOneBackward,
  kTwoForwardsTwoBackwards,    // the older graph first
  kTwoForwardsNewestBackward,  // the newer graph first
  kRetainTwice,                // one forward, two backwards
  kRecomputedRoot,             // the whole model in one checkpoint
};

// The way in which units are chosen. A unit that a policy chose is called when its parameters are
// accessed. So the forward of each such unit multiplies its inputs, its outputs and the inputs of
// its inner units by a parameter (`gain`). Then all ranks access the same units in the same order,
// however they differ otherwise. program_reach.h derives which accesses form one call, and which
// calls fire.
enum class Boundaries : uint8_t { kUnits, kPolicy };

// A training program. parts[0] is the root unit. Its register 0 holds a batch of floats, and its
// register 1 holds a batch of tokens.
struct Program {
  std::vector<Part> parts;
  std::vector<Gate> gates;
  Plan plan = Plan::kOneForward;
  int throws_at = -1;      // if set: before each step, a backward throws at this pre_backward
  bool evaluates = false;  // eval() before each backward
  bool has_twin = false;   // a second engine of the mesh trains a copy of the model, in turns
  int layers_of_unit = 1;  // by policy: number of neighbouring layers in one unit

  // Returns the first part of the unit that contains `part`.
  int unit_of(int part) const;
  // Returns true if the unit that contains `part` contains other parts too.
  bool has_several_layers(int part) const;
  int new_gate(uint32_t closed) {
    gates.push_back({closed});
    return static_cast<int>(gates.size()) - 1;
  }
  bool is_open(int gate, int step, int rank) const {
    return gate < 0 || gates[gate].is_open(step, rank);
  }
};

// Returns the names of the units. The keys are the FQNs of their modules.
std::map<std::string, std::string> unit_names(const Program& program);

// Returns a readable text with one operation a line.
std::string describe(const Program& program);

// A writer that appends operations to one part of a program. Each function returns the register of
// the operation's first result.
class PartWriter {
 public:
  PartWriter(Program& program, int part) : program_(program), part_(part) {
    next_ = program.parts[part].inputs;
  }
  int write(Op op) {
    const int results = op.kind == OpKind::kHalves ? 2
                        : op.kind == OpKind::kCall
                            ? static_cast<int>(program_.parts[op.index].outputs.size())
                            : 1;
    program_.parts[part_].ops.push_back(std::move(op));
    return std::exchange(next_, next_ + results);
  }
  int linear(int x, int weight = 0, int gate = -1) {
    const bool is_hollow = program_.parts[part_].is_unit && program_.parts[part_].weights == 0;
    return write({is_hollow ? OpKind::kEmpty : OpKind::kLinear, {x}, weight, gate});
  }
  int add(int a, int b, int gate = -1) { return write({OpKind::kAdd, {a, b}, 0, gate}); }
  int tanh(int a) { return write({OpKind::kTanh, {a}}); }
  int state(int a) { return write({OpKind::kState, {a}}); }
  int view(int a) { return write({OpKind::kView, {a}}); }
  int inplace(int a) { return write({OpKind::kInplace, {a}}); }
  int choose(int a, int b, int gate) { return write({OpKind::kChoose, {a, b}, 0, gate}); }
  int call(int part, std::vector<int> args, int gate = -1) {
    return write({OpKind::kCall, std::move(args), part, gate});
  }
  int recompute(int part, std::vector<int> args, int gate = -1) {
    return write({OpKind::kCall, std::move(args), part, gate, true});
  }
  void returns(std::vector<int> outputs) { program_.parts[part_].outputs = std::move(outputs); }
  int registers() const { return next_; }

 private:
  Program& program_;
  int part_;
  int next_ = 0;
};

}  // namespace fsdp::testing

#include "closing/support/program_reach.h"

#include <algorithm>
#include <utility>

namespace fsdp::testing {
namespace {

// The graph that a forward or a recomputed segment makes.
class Graph {
 public:
  Graph(const Program& program, Boundaries boundaries, int step, int rank, Reach& result)
      : program_(program), boundaries_(boundaries), step_(step), rank_(rank), result_(result) {}

  struct Value {
    int node = 0;
    int storage = 0;
    int version = 0;
  };
  Value leaf(bool requires_grad) { return in_new_storage(node({}, requires_grad)); }

  // Runs a part. `weights_of` is the unit that has the weights of this part.
  std::vector<Value> run(int part_index, int weights_of, std::vector<Value> registers) {
    const Part& part = program_.parts[part_index];
    for (const Op& op : part.ops) step(op, weights_of, registers);
    std::vector<Value> outputs;
    for (const int output : part.outputs) outputs.push_back(registers[output]);
    return outputs;
  }
  std::vector<Value> call(int part_index, int weights_of, std::vector<Value> inputs) {
    if (!program_.parts[part_index].is_unit) {
      return run(part_index, weights_of, std::move(inputs));
    }
    if (boundaries_ == Boundaries::kPolicy) {
      return call_by_policy(part_index, weights_of, std::move(inputs));
    }
    const int begin = static_cast<int>(nodes_.size());
    std::vector<Value> outputs = run(part_index, part_index, inputs);
    Call made{.unit = part_index, .outputs = {}};
    for (const Value& input : inputs) {  // an in-place change makes the input an output too
      const Storage& storage = storages_[input.storage];
      if (storage.version != input.version) made.outputs.push_back(storage.node);
    }
    for (Value& output : outputs) {
      const int now = read(output);
      if (!nodes_[now].requires_grad) continue;
      const int base = storages_[output.storage].node;
      if (now < begin && base < begin) {
        output.node = node({now}, false);
        storages_[output.storage].passed_through = true;
      }
      made.outputs.push_back(output.node);
      if (base >= begin) made.outputs.push_back(base);
    }
    calls_.push_back(std::move(made));
    return outputs;
  }
  bool requires_grad(Value& value) { return nodes_[read(value)].requires_grad; }

  // Adds the calls to the result that a backward from `roots` fires, in this graph and in the
  // segments that the backward recomputes.
  void backward(std::vector<Value> roots) {
    std::vector<int> todo;
    for (Value& root : roots) todo.push_back(read(root));
    std::vector<char> reached(nodes_.size(), 0);
    while (!todo.empty()) {
      const int next = todo.back();
      todo.pop_back();
      if (reached[next] || !nodes_[next].requires_grad) continue;
      reached[next] = 1;
      todo.insert(todo.end(), nodes_[next].inputs.begin(), nodes_[next].inputs.end());
    }
    for (const Call& made : calls_) {
      const bool fires =
          std::ranges::any_of(made.outputs, [&](int at) { return reached[at] != 0; });
      result_.fired.push_back(2 * made.unit + (fires ? 1 : 0));
      result_.fired_calls += fires ? 1 : 0;
    }
    for (const Checkpoint& each : checkpoints_) {
      result_.fired.push_back(reached[each.node]);
      if (!reached[each.node]) continue;
      Graph inner(program_, boundaries_, step_, rank_, result_);
      std::vector<Value> inputs;
      for (const bool requires_grad : each.requires_grad)
        inputs.push_back(inner.leaf(requires_grad));
      inner.backward(inner.call(each.part, each.weights_of, std::move(inputs)));
    }
  }

 private:
  struct Node {
    std::vector<int> inputs;
    bool requires_grad = false;
  };
  struct Storage {
    int node = 0;
    int version = 0;
    bool passed_through = false;
  };
  struct Call {
    int unit = 0;
    std::vector<int> outputs;
    int checkpoint = -1;  // the last checkpoint whose first run accessed the unit
  };
  struct Checkpoint {
    int node = 0, part = 0, weights_of = 0;
    std::vector<bool> requires_grad;
  };

  // Multiplies values by the parameter of body `part`.
  void touch(std::vector<Value>& values, int part) {
    for (Value& value : values) value = in_new_storage(touching({read(value)}, part));
  }
  std::vector<Value> call_by_policy(int part, int caller, std::vector<Value> inputs) {
    if (caller != part) touch(inputs, caller);
    touch(inputs, part);
    std::vector<Value> outputs = run(part, part, std::move(inputs));
    touch(outputs, part);
    return outputs;
  }
  // Makes the node of an operator on parameters of `part`. By policy, only these operators cause
  // calls (touched_units.cpp).
  int touching(std::vector<int> inputs, int part) {
    const int made = node(std::move(inputs), has_weight(part));
    if (boundaries_ != Boundaries::kPolicy) return made;
    const int unit = program_.unit_of(part);
    std::erase_if(running_, [&](int call) {
      return !is_inside(unit, calls_[call].unit) && !is_inside(calls_[call].unit, unit);
    });
    auto call = std::ranges::find(running_, unit, [&](int each) { return calls_[each].unit; });
    if (call == running_.end()) {
      calls_.push_back({.unit = unit, .outputs = {}});
      call = running_.insert(call, static_cast<int>(calls_.size()) - 1);
    }
    // A part without weights accesses the sum of its empty parameter.
    const bool is_hollow = program_.parts[part].weights == 0;
    const bool in_graph = is_hollow ? has_weight(part) : nodes_[made].requires_grad;
    if (makes_graph_ && in_graph) calls_[*call].outputs.push_back(made);
    if (!makes_graph_) calls_[*call].checkpoint = static_cast<int>(checkpoints_.size());
    return made;
  }
  bool is_inside(int unit, int other) const {
    while (unit != 0 && unit != other) unit = program_.unit_of(program_.parts[unit].parent);
    return unit == other;
  }

  int node(std::vector<int> inputs, bool requires_grad) {
    for (const int input : inputs) requires_grad = requires_grad || nodes_[input].requires_grad;
    nodes_.push_back({std::move(inputs), requires_grad});
    return static_cast<int>(nodes_.size()) - 1;
  }
  Value in_new_storage(int made_by) {
    storages_.push_back({.node = made_by});
    return {made_by, static_cast<int>(storages_.size()) - 1, 0};
  }
  // A value gets a new node if its memory was changed through another value.
  int read(Value& value) {
    const Storage& storage = storages_[value.storage];
    if (storage.version != value.version) {
      value.node = node({storage.node}, false);
      value.version = storage.version;
    }
    return value.node;
  }
  bool has_weight(int unit) const { return !program_.parts[unit].frozen; }

  void step(const Op& op, int weights_of, std::vector<Value>& registers) {
    const bool open = program_.is_open(op.gate, step_, rank_);
    std::vector<int> args;
    for (const int arg : op.args) args.push_back(read(registers[arg]));
    const Value first = registers[op.args[0]];
    switch (op.kind) {
      case OpKind::kLinear:
      case OpKind::kEmpty:
        registers.push_back(in_new_storage(open ? touching(args, weights_of) : node(args, false)));
        return;
      case OpKind::kEmbed:
        registers.push_back(in_new_storage(touching({}, weights_of)));
        return;
      case OpKind::kAdd:
        registers.push_back(in_new_storage(node(open ? args : std::vector{args[0]}, false)));
        return;
      case OpKind::kTanh:
      case OpKind::kState:
        registers.push_back(in_new_storage(node(args, false)));
        return;
      case OpKind::kView:
        registers.push_back({node(args, false), first.storage, first.version});
        return;
      case OpKind::kHalves: {
        const Value base = in_new_storage(node(args, false));
        for (int half = 0; half < 2; ++half) {
          registers.push_back({node({base.node}, false), base.storage, 0});
        }
        return;
      }
      case OpKind::kInplace: {
        Storage& storage = storages_[first.storage];
        if (storage.passed_through) result_.changes_passed_through = true;
        const int changed = node({args[0], storage.node}, false);
        storages_[first.storage].node = changed;
        ++storages_[first.storage].version;
        registers.push_back({changed, first.storage, storages_[first.storage].version});
        return;
      }
      case OpKind::kChoose:
        registers.push_back(open ? first : registers[op.args[1]]);
        return;
      case OpKind::kDetach:
        registers.push_back(open ? first : in_new_storage(node({}, false)));
        return;
      case OpKind::kCall:
        return step_call(op, open, weights_of, args, registers);
    }
  }

  void step_call(const Op& op, bool open, int weights_of, const std::vector<int>& args,
                 std::vector<Value>& registers) {
    const size_t results = program_.parts[op.index].outputs.size();
    if (!open) {
      registers.insert(registers.end(), results, Value(registers[op.args[0]]));
      return;
    }
    std::vector<Value> inputs, outputs;
    for (const int arg : op.args) inputs.push_back(registers[arg]);
    if (op.recompute && makes_graph_) {
      if (boundaries_ == Boundaries::kPolicy) {  // the first run of the segment accesses units too
        makes_graph_ = false;
        call(op.index, weights_of, inputs);
        makes_graph_ = true;
      }
      Checkpoint made{.part = op.index, .weights_of = weights_of, .requires_grad = {}};
      for (const int arg : args) made.requires_grad.push_back(nodes_[arg].requires_grad);
      made.node = node(args, true);
      for (size_t i = 0; i < results; ++i) {
        outputs.push_back(in_new_storage(node({made.node}, false)));
      }
      for (const int each : running_) {  // as touched_units::hook_recomputed does
        Call& around = calls_[each];
        const bool touched = around.checkpoint == static_cast<int>(checkpoints_.size());
        if (touched && program_.has_several_layers(around.unit))
          around.outputs.push_back(made.node);
      }
      checkpoints_.push_back(std::move(made));
    } else {
      outputs = call(op.index, weights_of, std::move(inputs));
    }
    registers.insert(registers.end(), outputs.begin(), outputs.end());
  }

  const Program& program_;
  const Boundaries boundaries_;
  const int step_, rank_;
  Reach& result_;
  std::vector<Node> nodes_;
  std::vector<Storage> storages_;
  std::vector<Call> calls_;
  std::vector<int> running_;  // by policy: the calls that have begun and not ended
  bool makes_graph_ = true;
  std::vector<Checkpoint> checkpoints_;
};

}  // namespace

Reach reach_of(const Program& program, int step, int rank, Boundaries boundaries) {
  Reach result;
  Graph graph(program, boundaries, step, rank, result);
  std::vector<Graph::Value> inputs = {graph.leaf(false), graph.leaf(false)};
  std::vector<Graph::Value> outputs = graph.call(0, 0, std::move(inputs));
  for (Graph::Value& output : outputs) {
    result.loss_requires_grad = result.loss_requires_grad || graph.requires_grad(output);
  }
  graph.backward(std::move(outputs));
  return result;
}

}  // namespace fsdp::testing

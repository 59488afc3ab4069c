#include "closing/support/graph_matrix.h"

namespace fsdp::testing {
namespace {

// Makes programs. The usage closes gate 0 or 1. In most graphs one layer has such a gate.
struct Maker {
  explicit Maker(Usage usage) {
    program.parts.push_back({.name = "root", .weights = 1, .inputs = 2, .ops = {}, .outputs = {}});
    uint32_t on_one = 0, skipped_by_all = 0;
    for (int step = 0; step < 2; ++step) on_one |= Gate::bit(step, 1);
    for (int rank = 0; rank < 3; ++rank) skipped_by_all |= Gate::bit(1, rank);
    unused = program.new_gate(usage == Usage::kUnusedOnOneRank ? on_one : 0);
    skipped = program.new_gate(usage == Usage::kSkipped ? skipped_by_all : 0);
  }
  int part(Part made) {
    program.parts.push_back(std::move(made));
    return static_cast<int>(program.parts.size()) - 1;
  }
  PartWriter writer(int index) { return {program, index}; }
  PartWriter root() { return {program, 0}; }

  // Makes a layer x + W1 tanh(W0 x). The gate controls W1.
  int layer(const std::string& name, int gate = -1, int parent = 0) {
    const int index = part({.name = name, .parent = parent, .ops = {}, .outputs = {}});
    PartWriter w = writer(index);
    const int hidden = w.tanh(w.linear(0, 0));
    w.returns({w.add(w.linear(hidden, 1, gate), 0)});
    return index;
  }
  std::vector<int> layers(int count) {  // the middle one has the gate
    std::vector<int> made;
    for (int i = 0; i < count; ++i) {
      made.push_back(layer("b" + std::to_string(i), i == count / 2 ? unused : -1));
    }
    return made;
  }
  // Makes a layer x + W1 tanh(W0 x + m). If `gates_input`, the gate controls m, otherwise W1.
  int joined(const std::string& name, int gate = -1, bool gates_input = false) {
    const int index = part({.name = name, .inputs = 2, .ops = {}, .outputs = {}});
    PartWriter w = writer(index);
    const int hidden = w.tanh(w.add(w.linear(0, 0), 1, gates_input ? gate : -1));
    w.returns({w.add(w.linear(hidden, 1, gates_input ? -1 : gate), 0)});
    return index;
  }
  int embedding(const std::string& name) {
    const int index = part({.name = name, .weights = 1, .ops = {}, .outputs = {}});
    PartWriter w = writer(index);
    w.returns({w.write({OpKind::kEmbed, {0}})});
    return index;
  }
  // Makes a segment that calls the parts one after another. A part with two inputs also receives
  // the segment's second input.
  int segment(const std::vector<int>& callees) {
    const int index =
        part({.name = "segment", .is_unit = false, .weights = 0, .ops = {}, .outputs = {}});
    PartWriter w = writer(index);
    int x = 0;
    for (const int callee : callees) x = w.call(callee, {x});
    w.returns({x});
    return index;
  }

  Program program;
  int unused = 0, skipped = 0;
};

enum class Recompute : uint8_t { kNone, kAll, kEverySecond };

Program chain(Usage usage, Recompute recompute, int frozen = -1) {
  Maker m(usage);
  const std::vector<int> layers = m.layers(5);
  PartWriter root = m.root();
  int x = root.linear(0);
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool again =
        recompute == Recompute::kAll || (recompute == Recompute::kEverySecond && i % 2 == 1);
    const int gate = i == 2 ? m.skipped : -1;
    x = again ? root.recompute(layers[i], {x}, gate) : root.call(layers[i], {x}, gate);
  }
  root.returns({x});
  if (frozen >= 0) m.program.parts[layers[frozen]].frozen = true;
  return m.program;
}

Program output_used_twice(Usage usage) {
  Maker m(usage);
  const std::vector<int> b = m.layers(5);
  PartWriter root = m.root();
  int x = root.linear(0);
  for (const int unit : b) {
    const int y = root.call(unit, {x}, unit == b[2] ? m.skipped : -1);
    x = root.add(root.tanh(y), y);
  }
  root.returns({x});
  return m.program;
}

Program u_net(Usage usage) {
  Maker m(usage);
  const std::vector<int> b = m.layers(5);
  PartWriter root = m.root();
  const int down0 = root.call(b[0], {root.linear(0)});
  const int down1 = root.call(b[1], {down0});
  const int bottom = root.call(b[2], {down1}, m.skipped);
  const int up1 = root.call(b[3], {root.add(bottom, down1)});
  root.returns({root.call(b[4], {root.add(up1, down0)})});
  return m.program;
}

// Adds the outputs of `count` units that use one tensor. The first unit makes this tensor.
Program branches(Usage usage, int count) {
  Maker m(usage);
  const int first = m.layer("first");
  std::vector<int> arms;
  for (int i = 0; i < count; ++i) {
    arms.push_back(m.layer("arm" + std::to_string(i), i == count / 2 ? m.unused : -1));
  }
  PartWriter root = m.root();
  const int h = root.call(first, {root.linear(0)});
  int sum = h;
  for (const int arm : arms) {
    sum = root.add(sum, root.call(arm, {h}, arm == arms[0] ? m.skipped : -1));
  }
  root.returns({sum});
  return m.program;
}

Program encoder_decoder(Usage usage, bool recompute) {
  Maker m(usage);
  const int encoder = m.layer("encoder");
  std::vector<int> decoders;
  for (int i = 0; i < 12; ++i) {
    decoders.push_back(m.joined("decoder" + std::to_string(i), i == 5 ? m.unused : -1));
  }
  PartWriter root = m.root();
  const int start = root.linear(0);
  const int memory = root.call(encoder, {start});
  int x = root.tanh(start);
  for (const int decoder : decoders) {
    const int gate = decoder == decoders[3] ? m.skipped : -1;
    x = recompute ? root.recompute(decoder, {x, memory}, gate)
                  : root.call(decoder, {x, memory}, gate);
  }
  root.returns({x});
  return m.program;
}

// Nests units three deep: two outer units contain two middle units each, and each of these contains
// one inner unit. With the root, there are 11 units.
Program nested(Usage usage) {
  Maker m(usage);
  std::vector<int> outers;
  for (int i = 0; i < 2; ++i) {
    const std::string name = "outer" + std::to_string(i);
    const int outer = m.part({.name = name, .ops = {}, .outputs = {}});
    std::vector<int> middles;
    for (int j = 0; j < 2; ++j) {
      const int middle =
          m.part({.name = "middle" + std::to_string(j), .parent = outer, .ops = {}, .outputs = {}});
      const int inner = m.layer("inner", i == 0 && j == 1 ? m.unused : -1, middle);
      PartWriter w = m.writer(middle);
      const int y = w.call(inner, {w.linear(0, 0)}, i == 1 && j == 0 ? m.skipped : -1);
      w.returns({w.linear(y, 1, i == 1 && j == 1 ? m.unused : -1)});
      middles.push_back(middle);
    }
    PartWriter w = m.writer(outer);
    int x = w.tanh(w.linear(0, 0));
    for (const int middle : middles) x = w.call(middle, {x});
    w.returns({w.add(w.linear(x, 1), 0)});
    outers.push_back(outer);
  }
  PartWriter root = m.root();
  int x = root.linear(0);
  for (const int outer : outers) x = root.call(outer, {x});
  root.returns({x});
  return m.program;
}

// Calls layers in an order that is written as letters: "abb" calls a, b and b.
Program sequence(Usage usage, const std::string& order) {
  Maker m(usage);
  std::vector<int> units;
  for (char letter = 'a'; letter <= 'c'; ++letter) {
    if (order.find(letter) == std::string::npos) continue;
    units.push_back(m.layer(std::string(1, letter), letter == 'b' ? m.unused : -1));
  }
  PartWriter root = m.root();
  int x = root.linear(0);
  for (size_t i = 0; i < order.size(); ++i) {
    x = root.tanh(root.call(units[order[i] - 'a'], {x}, i == 1 ? m.skipped : -1));
  }
  root.returns({x});
  return m.program;
}

Program in_two_checkpoints(Usage usage, bool plain_too) {
  Maker m(usage);
  const int a = m.layer("a", m.unused);
  const int b = m.layer("b");
  PartWriter root = m.root();
  int x = root.recompute(a, {root.linear(0)});
  x = root.call(b, {x}, m.skipped);
  if (plain_too) x = root.call(a, {x});
  root.returns({root.recompute(a, {x})});
  return m.program;
}

Program embedding_at(Usage usage, bool first) {
  Maker m(usage);
  const int embedding = m.embedding("embedding");
  const std::vector<int> b = m.layers(5);
  PartWriter root = m.root();
  int x = first ? root.linear(root.call(embedding, {1})) : root.linear(0);
  for (size_t i = 0; i < b.size(); ++i) {
    if (!first && i == 3) x = root.add(x, root.call(embedding, {1}));
    x = root.call(b[i], {x}, i == 2 ? m.skipped : -1);
  }
  root.returns({x});
  return m.program;
}

// Changes inputs and outputs in place, and uses views of them.
Program views_and_inplace(Usage usage) {
  Maker m(usage);
  std::vector<int> units;
  for (int i = 0; i < 4; ++i) {
    const int index = m.part({.name = "b" + std::to_string(i), .ops = {}, .outputs = {}});
    PartWriter w = m.writer(index);
    const int hidden = w.tanh(w.linear(0, 0));
    w.returns({w.view(w.add(w.linear(hidden, 1, i == 1 ? m.unused : -1), 0))});
    units.push_back(index);
  }
  PartWriter root = m.root();
  int x = root.linear(0);
  for (const int unit : units) {
    x = root.view(root.inplace(root.add(x, x)));
    x = root.inplace(root.call(unit, {x}, unit == units[2] ? m.skipped : -1));
  }
  root.returns({x});
  return m.program;
}

Program inplace_on_view_input(Usage usage) {
  Maker m(usage);
  const int first = m.layer("first");
  const int unit = m.part({.name = "changes", .ops = {}, .outputs = {}});
  PartWriter w = m.writer(unit);
  const int changed = w.inplace(w.view(0));
  w.returns({w.add(w.linear(changed, 0), w.linear(changed, 1, m.unused))});
  const int last = m.layer("last");
  PartWriter root = m.root();
  const int x = root.call(first, {root.linear(0)});
  const int view = root.view(root.add(x, x));
  root.returns({root.call(last, {root.call(unit, {view}, m.skipped)})});
  return m.program;
}

Program with_plan(Program program, Plan plan) {
  program.plan = plan;
  return program;
}

// Unit q has two inputs; the newer one was computed from the older one. On one rank q does not use
// the newer one.
Program newest_input_unused(Usage usage, bool recompute) {
  Maker m(usage);
  const int first = m.layer("first");
  const int p = m.layer("p"), q = m.joined("q", m.unused, /*gates_input=*/true);
  PartWriter root = m.root();
  const int h = root.call(first, {root.linear(0)});
  const int left = recompute ? root.recompute(p, {h}, m.skipped) : root.call(p, {h}, m.skipped);
  root.returns({root.add(root.call(q, {h, root.tanh(h)}), left)});
  return m.program;
}

// An outer unit has two outputs, and its inner unit contributes to both. The root uses the second
// output only on some ranks.
Program second_output_on_one_rank(Usage usage) {
  Maker m(usage);
  const int one = m.layer("one");
  const int two = m.part({.name = "two", .ops = {}, .outputs = {}});
  const int inner = m.layer("inner", -1, two);
  PartWriter w = m.writer(two);
  const int x = w.call(inner, {w.tanh(w.linear(0, 0))});
  w.returns({w.linear(x, 1), w.tanh(x)});
  const int three = m.layer("three");
  PartWriter root = m.root();
  const int h = root.call(one, {root.linear(0)}, m.skipped);
  const int pair = root.call(two, {h});
  const int y = root.call(three, {pair});
  root.returns({root.add(y, pair + 1, m.unused)});
  return m.program;
}

Program returns_its_input(Usage usage) {
  Maker m(usage);
  const std::vector<int> b = m.layers(2);
  const int drops = m.part({.name = "drops", .ops = {}, .outputs = {}});
  PartWriter w = m.writer(drops);
  w.returns({w.choose(w.linear(w.tanh(w.linear(0, 0)), 1), 0, m.unused)});
  PartWriter root = m.root();
  int x = root.call(b[0], {root.linear(0)});
  x = root.call(drops, {x});
  root.returns({root.call(b[1], {root.add(x, root.tanh(x))}, m.skipped)});
  return m.program;
}

Program two_in_a_checkpoint(Usage usage) {
  Maker m(usage);
  const std::vector<int> b = m.layers(5);
  const int pair = m.segment({b[1], b[2]});
  const int inner = m.segment({b[4]});
  const int outer =
      m.part({.name = "outer", .is_unit = false, .weights = 0, .ops = {}, .outputs = {}});
  PartWriter w = m.writer(outer);
  w.returns({w.recompute(inner, {w.call(b[3], {0}, m.skipped)})});
  PartWriter root = m.root();
  int x = root.call(b[0], {root.linear(0)});
  x = root.recompute(pair, {x});
  root.returns({root.recompute(outer, {x})});
  return m.program;
}

// A unit that recomputes a part of itself.
Program checkpoint_inside(Usage usage) {
  Maker m(usage);
  const std::vector<int> b = m.layers(2);
  const int segment =
      m.part({.name = "segment", .is_unit = false, .weights = 0, .ops = {}, .outputs = {}});
  PartWriter s = m.writer(segment);
  s.returns({s.linear(s.tanh(s.linear(0, 0)), 1, m.unused)});
  const int unit = m.part({.name = "recomputes", .weights = 3, .ops = {}, .outputs = {}});
  PartWriter w = m.writer(unit);
  const int hidden = w.recompute(segment, {w.linear(0, 2)});
  w.returns({w.add(w.linear(hidden, 0), 0)});
  PartWriter root = m.root();
  int x = root.call(b[0], {root.linear(0)}, m.skipped);
  x = root.call(unit, {x});
  root.returns({root.call(b[1], {x})});
  return m.program;
}

}  // namespace

std::vector<MatrixGraph> matrix_graphs() {
  using U = Usage;
  const auto plain_chain = [](U u) { return chain(u, Recompute::kNone); };
  return {
      {"chain", plain_chain, 2, 22, 12},
      {"recompute all", [](U u) { return chain(u, Recompute::kAll); }, 2, 22, 12},
      {"recompute every 2nd", [](U u) { return chain(u, Recompute::kEverySecond); }, 2, 22, 12},
      {"frozen first", [](U u) { return chain(u, Recompute::kNone, 0); }, 2, 22, 10},
      {"frozen last", [](U u) { return chain(u, Recompute::kNone, 4); }, 2, 22, 10},
      {"output used twice", output_used_twice, 2, 22, 12},
      {"u-net", u_net, 2, 22, 12},
      {"2 branches", [](U u) { return branches(u, 2); }, 2, 14, 8},
      {"encoder-decoder", [](U u) { return encoder_decoder(u, false); }, 2, 54, 28},
      {"nested", nested, 4, 42, 22},
      {"one unit three times", [](U u) { return sequence(u, "abbbc"); }, 2, 18, 8},
      {"one unit in two checkpoints", [](U u) { return in_two_checkpoints(u, false); }, 2, 14, 8},
      {"embedding first", [](U u) { return embedding_at(u, true); }, 2, 26, 14},
      {"views and in-place", views_and_inplace, 2, 18, 10},
      {"2 forwards, 1 backward",
       [=](U u) { return with_plan(plain_chain(u), Plan::kTwoForwardsOneBackward); }, 2, 42, 12},
      {"2 forwards, 2 backwards",
       [=](U u) { return with_plan(plain_chain(u), Plan::kTwoForwardsTwoBackwards); }, 2, 44, 24},
      {"12 branches", [](U u) { return branches(u, 12); }, 2, 54, 28},
      {"newest input unused", [](U u) { return newest_input_unused(u, false); }, 2, 14, 8},
      {"newest input unused, recomputed", [](U u) { return newest_input_unused(u, true); }, 2, 14,
       8},
      {"second output on one rank", second_output_on_one_rank, 3, 18, 10},
      {"returns its input on one rank", returns_its_input, 2, 14, 8},
      {"embedding in the middle", [](U u) { return embedding_at(u, false); }, 2, 26, 14},
      {"two units in a checkpoint", two_in_a_checkpoint, 3, 22, 12},
      {"checkpoint inside a unit", checkpoint_inside, 2, 14, 8},
      {"retained graph", [=](U u) { return with_plan(plain_chain(u), Plan::kRetainTwice); }, 2, 34,
       24},
      {"in-place on a view input", inplace_on_view_input, 2, 14, 8},
      {"encoder-decoder recomputed", [](U u) { return encoder_decoder(u, true); }, 2, 54, 28},
      {"plain and in checkpoints", [](U u) { return in_two_checkpoints(u, true); }, 2, 18, 10},
      {"two units in turn", [](U u) { return sequence(u, "ababab"); }, 2, 26, 6},
      {"the newer of two graphs first",
       [=](U u) { return with_plan(plain_chain(u), Plan::kTwoForwardsNewestBackward); }, 2, 44, 24},
      {"the whole model in a checkpoint",
       [=](U u) { return with_plan(plain_chain(u), Plan::kRecomputedRoot); }, 6, 24, 12},
  };
}

}  // namespace fsdp::testing

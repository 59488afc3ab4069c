#include "closing/support/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fsdp::testing {

int Program::unit_of(int part) const {
  int place = 0, first = part;
  for (int i = 1; i <= part && layers_of_unit > 1; ++i) {
    if (parts[i].parent != parts[part].parent || !parts[i].is_unit) continue;
    if (place++ % layers_of_unit == 0) first = i;
  }
  return first;
}

bool Program::has_several_layers(int part) const {
  for (int i = 1; i < static_cast<int>(parts.size()); ++i) {
    if (i != part && parts[i].is_unit && unit_of(i) == unit_of(part)) return true;
  }
  return false;
}

std::map<std::string, std::string> unit_names(const Program& program) {
  std::vector<std::string> fqns{""};
  std::map<std::string, std::string> names{{"", ""}};
  for (int i = 1; i < static_cast<int>(program.parts.size()); ++i) {
    const Part& part = program.parts[i];
    const std::string& around = fqns[part.parent];
    fqns.push_back(around.empty() ? part.name : around + "." + part.name);
    if (!part.is_unit) continue;
    const int first = program.unit_of(i);
    const std::string name = first == i ? fqns[i] : fqns[first] + "-" + part.name;
    for (int each = first; each <= i; ++each) {
      if (program.parts[each].is_unit && program.unit_of(each) == first) names[fqns[each]] = name;
    }
  }
  return names;
}

std::string describe(const Program& program) {
  static constexpr const char* kNames[] = {"linear", "empty",  "embed",  "add",
                                           "tanh",   "view",   "halves", "inplace",
                                           "choose", "detach", "state",  "call"};
  std::string text =
      fmt::format("plan {}{}, {} layers a unit\n", static_cast<int>(program.plan),
                  program.evaluates ? ", eval() before backward" : "", program.layers_of_unit);
  for (size_t i = 0; i < program.parts.size(); ++i) {
    const Part& part = program.parts[i];
    text += fmt::format("{} '{}' in {}{}{}{}{}, registers 0..{}:\n", i, part.name, part.parent,
                        part.is_unit ? "" : ", no unit", part.frozen ? ", frozen" : "",
                        part.has_holes ? ", holes" : "",
                        part.is_unit && part.weights == 0 ? ", empty" : "", part.inputs - 1);
    int next = part.inputs;
    for (const Op& op : part.ops) {
      text += fmt::format("  {} = {}{} {} of [{}]", next, op.recompute ? "recompute " : "",
                          kNames[static_cast<int>(op.kind)], op.index, fmt::join(op.args, ", "));
      if (op.gate >= 0) text += fmt::format(" unless {:#x}", program.gates[op.gate].closed);
      text += "\n";
      next += op.kind == OpKind::kHalves ? 2
              : op.kind == OpKind::kCall ? static_cast<int>(program.parts[op.index].outputs.size())
                                         : 1;
    }
    text += fmt::format("  returns [{}]\n", fmt::join(part.outputs, ", "));
  }
  return text;
}

}  // namespace fsdp::testing

#include "closing/support/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fsdp::testing {

std::string describe(const Program& program) {
  static constexpr const char* kNames[] = {"linear", "empty",  "embed",  "add",
                                           "tanh",   "view",   "halves", "inplace",
                                           "choose", "detach", "state",  "call"};
  std::string text = fmt::format("plan {}{}\n", static_cast<int>(program.plan),
                                 program.evaluates ? ", eval() before backward" : "");
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

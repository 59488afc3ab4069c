#include "programs/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>

#include "fsdp/program_text.h"

namespace fsdp::doctor {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kAreaColumns = 15;
constexpr size_t kIndent = kAreaColumns + 7;  // the column at which a finding's text begins

void append_indented(std::string& out, std::string_view text) {
  for (const std::string& line : wrapped(printable(text), kColumns - kIndent)) {
    out += fmt::format("{:{}}{}\n", "", kIndent, line);
  }
}

}  // namespace

std::string_view name_of(State state) {
  switch (state) {
    case State::kOk:
      return "ok";
    case State::kNote:
      return "note";
    case State::kFails:
      return "fails";
  }
  return {};
}

std::string format_findings(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) {
    // The text is wrapped first. Then the area and the state replace the indent of the first line.
    const size_t begin = out.size();
    append_indented(out, finding.text);
    const std::string head = fmt::format("{:{}}{:{}}", finding.area, kAreaColumns,
                                         name_of(finding.state), kIndent - kAreaColumns);
    out.replace(begin, kIndent, head);
    if (!finding.remedy.empty()) append_indented(out, "remedy: " + finding.remedy);
  }
  return out;
}

}  // namespace fsdp::doctor

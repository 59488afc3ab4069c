#include "programs/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/printable_name.h"

namespace fsdp::doctor {
namespace {

constexpr size_t kColumns = 100;
constexpr size_t kAreaColumns = 15;
constexpr size_t kIndent = kAreaColumns + 7;  // behind the state

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

// Of the first `columns` characters.
size_t bytes_of(std::string_view text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes) {
    if (begins_character(text[bytes]) && seen++ == columns) break;
  }
  return bytes;
}

// Lines of at most `columns`, broken between words, and within those that no line could hold.
std::vector<std::string> wrapped(std::string_view text, size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) lines.push_back(std::exchange(line, {}));
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (columns_of(line) + 1 + columns_of(word) > columns) end_line();
    while (columns_of(word) > columns) {
      const size_t cut = bytes_of(word, columns);
      lines.emplace_back(word.substr(0, cut));
      word.remove_prefix(cut);
    }
    if (!line.empty()) line += ' ';
    line += word;
  }
  end_line();
  if (lines.empty()) lines.emplace_back();
  return lines;
}

void append_indented(std::string& out, std::string_view text) {
  for (const std::string& line : wrapped(printable_name(text), kColumns - kIndent)) {
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

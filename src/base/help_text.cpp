#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "fsdp/program_text.h"

namespace fsdp {
namespace {

constexpr size_t kHelpColumns = 80;
constexpr size_t kMeaningAt = 32;

// Returns false for a byte 10xxxxxx, which continues a UTF-8 character.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

// Returns the number of bytes in the first `columns` characters.
size_t bytes_of(std::string_view text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes) {
    if (begins_character(text[bytes]) && seen++ == columns) break;
  }
  return bytes;
}

}  // namespace

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
    // Cut a word that is longer than a line.
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

std::string help_row(std::string_view flag, std::string_view meaning) {
  const std::string indent(kMeaningAt, ' ');
  std::string row = fmt::format("  {}", flag);
  const size_t columns = columns_of(row);
  row += columns < kMeaningAt ? indent.substr(columns) : "\n" + indent;
  std::string_view before;
  for (const std::string& line : wrapped(meaning, kHelpColumns - kMeaningAt)) {
    row += fmt::format("{}{}\n", before, line);
    before = indent;
  }
  return row;
}

std::string_view exit_codes_help() {
  return "Exit codes: 0 success, 64 wrong command line, 65 invalid file content, 70 error\n"
         "of the program or out of memory, 73 an output cannot be created, 74 reading or\n"
         "writing failed, 75 another rank failed: restart, 78 wrong environment or\n"
         "configuration, 128 + N signal N. One line on stderr names the error.\n";
}

}  // namespace fsdp

// The README's lines of gpt are gpt's, and what docs/command-line.md shows is so.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "support/run_program.h"

namespace {

std::string source_text(const std::string& path) {
  const std::filesystem::path file = std::filesystem::path(FSDP_SOURCE_DIR) / path;
  CAPTURE(file.string());
  std::ifstream stream(file);
  REQUIRE(stream.good());
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string trimmed(const std::string& line) {
  const size_t begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? ""
                                    : line.substr(begin, line.find_last_not_of(' ') + 1 - begin);
}

bool has_line(const std::string& text, const std::string& wanted) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line) == wanted) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("every line that the README's comparison adds is a line of gpt") {
  const std::string readme = source_text("README.md");
  const std::string program =
      source_text("examples/gpt/gpt.cpp") + source_text("examples/models/gpt.h");
  const size_t begin = readme.find("```diff\n");
  REQUIRE(begin != std::string::npos);
  std::istringstream block(readme.substr(begin, readme.find("\n```\n", begin) - begin));
  int added = 0;
  for (std::string line; std::getline(block, line);) {
    if (!line.starts_with("+")) continue;
    const std::string code = trimmed(line.substr(1));
    CAPTURE(code);
    CHECK(has_line(program, code));
    ++added;
  }
  CHECK(added == 10);
}

TEST_CASE("docs/command-line.md shows what hello_unit --help prints") {
  const std::string page = source_text("docs/command-line.md");
  const fsdp::testing::ProcessResult help = fsdp::testing::run_ranks_of(HELLO_UNIT, 2, {"--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  const size_t begin = page.find("```\n") + 4;
  CHECK(page.substr(begin, page.find("```", begin) - begin) == help.out);
}

TEST_CASE("the code of docs/command-line.md is in the examples") {
  const std::string page = source_text("docs/command-line.md");
  const std::string programs = source_text("examples/hello_unit/hello_unit.cpp") +
                               source_text("examples/gpt/gpt.cpp") +
                               source_text("examples/bert_qa/run/command_line.cpp");
  const std::string fence = "```cpp\n";
  int shown = 0;
  for (size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    std::istringstream block(page.substr(at, page.find("```", at) - at));
    for (std::string line; std::getline(block, line);) {
      if (trimmed(line) == "…") continue;
      CAPTURE(line);
      CHECK(has_line(programs, trimmed(line)));
      ++shown;
    }
  }
  CHECK(shown == 8);
}

// Checks that the README's code is in programs, and that docs/command-line.md shows real output.
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

std::string without_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string code;
  for (std::string line; std::getline(lines, line);) {
    code += trimmed(line.substr(0, line.find("//"))) + '\n';
  }
  return code;
}

}  // namespace

TEST_CASE("the code of the README is in the program that it names") {
  const std::string readme = source_text("README.md");
  const std::string fence = "```cpp\n";
  size_t at = 0;
  for (const char* path :
       {"tests/ports/alexnet/sharded.cpp", "examples/hello_unit/hello_unit.cpp"}) {
    CAPTURE(std::string(path));
    const std::string program = without_comments(source_text(path));
    at = readme.find(fence, at);
    REQUIRE(at != std::string::npos);
    at += fence.size();
    std::istringstream block(without_comments(readme.substr(at, readme.find("```", at) - at)));
    for (std::string line; std::getline(block, line);) {
      if (trimmed(line) == "…") continue;
      CAPTURE(line);
      CHECK(has_line(program, trimmed(line)));
    }
  }
  CHECK(readme.find(fence, at) == std::string::npos);
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
  const std::string programs =
      source_text("examples/hello_unit/hello_unit.cpp") + source_text("examples/gpt/gpt.cpp");
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
  CHECK(shown == 3);
}

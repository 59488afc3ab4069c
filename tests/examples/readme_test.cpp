// The README's lines of gpt are gpt's.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

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
  CHECK(added == 9);
}

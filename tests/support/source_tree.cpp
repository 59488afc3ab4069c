#include "support/source_tree.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace fsdp {

// The path comes from CMake, because __FILE__ may be relative to the build folder.
std::filesystem::path source_file(const std::string& path) {
  return std::filesystem::path(FSDP_SOURCE_DIR) / path;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> python_lines(const std::string& script, const std::string& arguments) {
  const std::filesystem::path python = source_file(".venv/bin/python");
  if (!std::filesystem::exists(python)) return {};
  const std::string command =
      python.string() + " " + source_file(script).string() + " " + arguments;
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::vector<std::string> lines(1);
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back().push_back(static_cast<char>(c));
    }
  }
  REQUIRE_MESSAGE(pclose(pipe) == 0, command);
  lines.pop_back();
  return lines;
}

}  // namespace fsdp

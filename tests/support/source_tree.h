// Finds and reads files of the source tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

// Returns the full path of a file. `path` is relative to the root of the source tree.
std::filesystem::path source_file(const std::string& path);

std::string read_text(const std::filesystem::path& path);

// Runs a script of the source tree with the project's Python and returns the lines that it prints.
// Returns no lines if that Python is not installed. A shell parses `arguments`.
std::vector<std::string> python_lines(const std::string& script, const std::string& arguments);

}  // namespace fsdp

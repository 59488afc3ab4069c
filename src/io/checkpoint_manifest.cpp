#include "io/checkpoint_manifest.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "fsdp/error.h"
#include "io/exact_number.h"
#include "io/manifest_reader.h"
#include "io/manifest_rules.h"
#include "io/plain_file.h"
#include "io/safetensors_header.h"
#include "io/safetensors_start.h"

namespace fsdp {
namespace {

constexpr std::string_view kIntervalsTensor = "intervals";
constexpr int64_t kIntervalFields = 4;
static_assert(sizeof(ManifestInterval) == kIntervalFields * sizeof(int64_t));
static_assert(std::endian::native == std::endian::little);  // byte order of the file

[[noreturn]] void cannot_store(std::string what) {
  throw InvalidArgument(
      {.what = "the manifest is invalid: " + what, .where = std::string(kManifestName)});
}

std::string json_of(std::string_view text) {
  std::string json;
  try {
    json = nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    cannot_store("a text is not UTF-8");
  }
  if (std::ssize(json) <= kMaxManifestTextBytes) return json;
  cannot_store(fmt::format("a text needs {} bytes, at most {} are allowed", json.size(),
                           kMaxManifestTextBytes));
}

std::string json_of(int64_t value) { return json_of(exact_text(value)); }

// Returns "[a, b]".
template <typename Items>
std::string list_of(const Items& items) {
  std::string text = "[";
  for (const auto& item : items) text += (text.size() > 1 ? ", " : "") + json_of(item);
  return text + "]";
}

std::string text_of(const ManifestValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    return fmt::format("{{\"integer\": {}}}", json_of(*integer));
  }
  if (const auto* real = std::get_if<double>(&value)) {
    return fmt::format("{{\"real\": {}}}", json_of(exact_text(*real)));
  }
  return fmt::format("{{\"text\": {}}}", json_of(std::get<std::string>(value)));
}

std::string text_of(const ManifestObject& object) {
  std::string values;
  for (const auto& [name, value] : object.values) {
    values += fmt::format("{}{}: {}", values.empty() ? "" : ", ", json_of(name), text_of(value));
  }
  return fmt::format(R"({{"name": {}, "kind": {}, "values": {{{}}}}})", json_of(object.name),
                     json_of(object.kind), values);
}

std::string text_of(const ManifestTensor& tensor) {
  return fmt::format(
      R"({{"name": {}, "other_names": {}, "dtype": {}, "shape": {}, "strides": {}, "granule": {}}})",
      json_of(tensor.name), list_of(tensor.other_names), json_of(name_of(tensor.dtype)),
      list_of(tensor.shape), list_of(tensor.strides), json_of(tensor.granule));
}

std::string text_of(const ManifestFile& file) {
  return fmt::format(R"({{"name": {}, "bytes": {}, "sum": {}}})", json_of(file.name),
                     json_of(file.bytes), json_of(file.sum.to_string()));
}

// Returns the text of a member whose value is an array. Each element has its own line, so that an
// error can name the line.
template <typename Item>
std::string lines_of(std::string_view key, const std::vector<Item>& items) {
  std::string text = fmt::format("\"{}\": [", key);
  for (const Item& item : items) {
    text += &item == items.data() ? "\n" : ",\n";
    text += text_of(item);
  }
  return text + "],\n";
}

// Compares the size and the hash of intervals.safetensors with the manifest's entry for this file.
void check_intervals_file(const MappedFile& file, const ManifestFile& entry,
                          const std::filesystem::path& path) {
  const auto refuse_file = [&](std::string what) {
    throw IoError(ExitCode::kCorruptData,
                  {.what = fmt::format("{} is damaged: {}", kIntervalsName, what),
                   .where = path.string(),
                   .hint = "load an earlier checkpoint"});
  };
  if (std::ssize(file.bytes()) != entry.bytes) {
    refuse_file(fmt::format("it has {} bytes, expected {}", file.bytes().size(), entry.bytes));
  }
  const Hash128 found = hash_of(file.bytes());
  if (found != entry.sum) {
    refuse_file(
        fmt::format("its hash is {}, expected {}", found.to_string(), entry.sum.to_string()));
  }
}

}  // namespace

int64_t ManifestTensor::numel() const {
  const auto count = count_elements(dtype, shape);
  return count ? count->numel : 0;
}

std::vector<std::byte> intervals_file(const std::vector<ManifestInterval>& intervals) {
  const SafetensorsStart start =
      safetensors_start({{std::string(kIntervalsTensor),
                          StoredDType::kI64,
                          {std::ssize(intervals), kIntervalFields}}},
                        {}, kSafetensorsPrefixBytes, std::string(kIntervalsName));
  if (start.file_bytes > kMaxManifestBytes) {
    cannot_store(fmt::format("its {} intervals need {} bytes, at most {} are allowed",
                             intervals.size(), start.file_bytes, kMaxManifestBytes));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(start.file_bytes));
  std::memcpy(bytes.data(), start.bytes.data(), start.bytes.size());
  if (!intervals.empty()) {
    std::memcpy(bytes.data() + start.bytes.size(), intervals.data(),
                intervals.size() * sizeof(ManifestInterval));
  }
  return bytes;
}

std::vector<ManifestInterval> parse_intervals(std::span<const std::byte> bytes,
                                              const std::filesystem::path& path) {
  const SafetensorsLayout layout = parse_safetensors(bytes, path.string());
  const auto is_rows = [](const StoredTensor& tensor) {
    return tensor.name == kIntervalsTensor && tensor.dtype == StoredDType::kI64 &&
           tensor.shape.size() == 2 && tensor.shape[1] == kIntervalFields;
  };
  if (layout.tensors.size() != 1 || !layout.metadata.empty() || !is_rows(layout.tensors[0])) {
    throw IoError(ExitCode::kCorruptData,
                  {.what = fmt::format(
                       "the file must have exactly one tensor, '{}', of type I64 and shape [n, {}]",
                       kIntervalsTensor, kIntervalFields),
                   .where = path.string()});
  }
  const StoredTensor& rows = layout.tensors[0];
  std::vector<ManifestInterval> intervals(static_cast<size_t>(rows.shape[0]));
  if (!intervals.empty()) {
    std::memcpy(intervals.data(), bytes.data() + rows.offset_bytes,
                static_cast<size_t>(rows.nbytes));
  }
  return intervals;
}

std::string manifest_text(const CheckpointManifest& manifest) {
  std::string fault = fault_of(manifest);
  if (fault.empty()) fault = fault_of_intervals(manifest, manifest.intervals);
  if (!fault.empty()) cannot_store(fault);
  std::string conditions;
  for (const auto& [name, value] : manifest.conditions) {
    conditions +=
        fmt::format("{}{}: {}", conditions.empty() ? "" : ", ", json_of(name), json_of(value));
  }
  std::string text =
      fmt::format(R"({{"version": {},
"run": {},
"sequence": {},
"step": {},
"resumed_from": {},
"time": {},
"finite": {},
"world_size": {},
"conditions": {{{}}},
)",
                  kManifestVersion, json_of(manifest.run), json_of(manifest.sequence),
                  json_of(manifest.step), json_of(manifest.resumed_from), json_of(manifest.time),
                  manifest.finite, json_of(manifest.world_size), conditions);
  text += lines_of("objects", manifest.objects);
  text += lines_of("tensors", manifest.tensors);
  text += lines_of("files", manifest.files);
  text += manifest_end(text);
  if (std::ssize(text) > kMaxManifestBytes) {
    cannot_store(
        fmt::format("it needs {} bytes, at most {} are allowed", text.size(), kMaxManifestBytes));
  }
  return text;
}

CheckpointManifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  const auto refuse_content = [](const std::filesystem::path& where, std::string what) {
    throw IoError(
        ExitCode::kCorruptData,
        {.what = std::move(what), .where = where.string(), .hint = "load an earlier checkpoint"});
  };
  // map_plain_file is called only if the folder exists, so that a missing folder and a folder
  // without a manifest give different errors.
  std::error_code ignored;
  const MappedFile file =
      std::filesystem::is_directory(folder, ignored) ? map_plain_file(path) : MappedFile(path);
  if (std::ssize(file.bytes()) > kMaxManifestBytes) {
    refuse_content(path, fmt::format("the file has {} bytes, at most {} are allowed",
                                     file.bytes().size(), kMaxManifestBytes));
  }
  CheckpointManifest manifest = parse_manifest(file.text(), path);
  if (manifest.files.back().bytes > kMaxManifestBytes) {
    refuse_content(path, fmt::format("{} has {} bytes, at most {} are allowed", kIntervalsName,
                                     manifest.files.back().bytes, kMaxManifestBytes));
  }
  const std::filesystem::path intervals_path = folder / kIntervalsName;
  const MappedFile intervals = map_plain_file(intervals_path);
  check_intervals_file(intervals, manifest.files.back(), intervals_path);
  manifest.intervals = parse_intervals(intervals.bytes(), intervals_path);
  const std::string fault = fault_of_intervals(manifest, manifest.intervals);
  if (!fault.empty()) refuse_content(intervals_path, fault);
  return manifest;
}

}  // namespace fsdp

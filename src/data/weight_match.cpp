#include "data/weight_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "data/printable_name.h"
#include "data/safetensors_header.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string>;
using Sources = std::map<std::string, TensorSource, std::less<>>;

std::string list_of(const Names& names) {
  constexpr size_t kMaxNamed = 8;
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMaxNamed); ++i) {
    list += fmt::format("{}{}", i > 0 ? ", " : "", quoted_name(names[i]));
  }
  if (names.size() > kMaxNamed) list += fmt::format(" and {} more", names.size() - kMaxNamed);
  return list;
}

std::string counted(const Names& names) {
  return fmt::format("{} tensor{}", names.size(), names.size() == 1 ? "" : "s");
}

[[noreturn]] void refuse(std::string what, const std::filesystem::path& where, std::string hint) {
  throw IoError(
      ExitCode::kCorruptData,
      {.what = std::move(what), .where = where.string(), .cause = {}, .hint = std::move(hint)});
}

bool is_droppable(std::string_view name) {
  return name.starts_with("cls.") || name.starts_with("bert.pooler.") ||
         name == "bert.embeddings.position_ids";
}

std::string_view module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot == name.npos ? 0 : dot);
}

void add(Sources& sources, const TensorSource& source, Names& renamed) {
  const std::string& stored = source.tensor->name;
  const std::string name = current_name(stored);
  const auto [at, is_new] = sources.emplace(name, source);
  if (!is_new) {
    refuse(fmt::format("tensors {} and {} both mean {}", quoted_name(at->second.tensor->name),
                       quoted_name(stored), quoted_name(name)),
           source.file->path(), "remove one of them");
  }
  if (stored.ends_with(".gamma") || stored.ends_with(".beta")) renamed.push_back(stored);
}

// What is called what, of the head's file first.
Sources collect(const ModelFolder& folder, const SafetensorsFile* head, Names& notes) {
  Sources sources, heads;
  Names renamed, replaced;
  for (const TensorSource& source : folder.tensors()) add(sources, source, renamed);
  if (head != nullptr) {
    for (const StoredTensor& tensor : head->tensors()) add(heads, {head, &tensor}, renamed);
  }
  for (const auto& [name, source] : heads) {
    if (!sources.insert_or_assign(name, source).second) replaced.push_back(name);
  }
  if (!renamed.empty()) {
    notes.push_back(fmt::format("{} named gamma or beta read as weight or bias", counted(renamed)));
  }
  if (!replaced.empty()) {
    notes.push_back(fmt::format("taken from {} instead of the model: {}", head->path().string(),
                                list_of(replaced)));
  }
  return sources;
}

void check_fit(const TensorSource& source, const ExpectedTensor& expected) {
  const StoredTensor& tensor = *source.tensor;
  if (tensor.shape != expected.shape) {
    refuse(fmt::format("tensor {} has shape {}, the model expects {}", quoted_name(tensor.name),
                       format_shape(tensor.shape), format_shape(expected.shape)),
           source.file->path(), "config.json and the weights do not belong together");
  }
  const auto dtype = engine_dtype(tensor.dtype);
  if (!dtype || !is_floating(*dtype)) {
    refuse(fmt::format("tensor {} is {}, which is no type of weights", quoted_name(tensor.name),
                       name_of(tensor.dtype)),
           source.file->path(), "convert it to F32, F16, BF16 or F64");
  }
}

// A head of which a part is missing was not meant to be initialised afresh.
void check_missing(const ModelFolder& folder, std::span<const ExpectedTensor> expected,
                   const MatchedWeights& matched, Names& initialised) {
  Names missing;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (matched.sources[i]) continue;
    bool is_whole = expected[i].may_be_missing;
    for (size_t j = 0; j < expected.size() && is_whole; ++j) {
      is_whole = !matched.sources[j] || module_of(expected[j].name) != module_of(expected[i].name);
    }
    (is_whole ? initialised : missing).push_back(expected[i].name);
  }
  if (!missing.empty()) {
    refuse(fmt::format("{} of the model missing from the weights: {}", counted(missing),
                       list_of(missing)),
           folder.path(), "config.json and the weights do not belong together");
  }
}

}  // namespace

std::string current_name(std::string_view stored) {
  std::string name(stored);
  for (const char* part : {"embeddings.", "encoder.", "pooler."}) {
    if (stored.starts_with(part)) name = fmt::format("bert.{}", stored);
  }
  if (name.ends_with(".gamma")) name.replace(name.size() - 5, 5, "weight");
  if (name.ends_with(".beta")) name.replace(name.size() - 4, 4, "bias");
  return name;
}

MatchedWeights match_weights(const ModelFolder& folder, std::span<const ExpectedTensor> expected,
                             const SafetensorsFile* head) {
  MatchedWeights matched;
  Sources sources = collect(folder, head, matched.notes);
  for (const ExpectedTensor& tensor : expected) {
    const auto at = sources.find(tensor.name);
    matched.sources.emplace_back();
    if (at == sources.end()) continue;
    check_fit(at->second, tensor);
    matched.sources.back() = at->second;
    sources.erase(at);
  }
  Names initialised, dropped, unexpected;
  check_missing(folder, expected, matched, initialised);
  for (const auto& [name, source] : sources) {
    (is_droppable(name) ? dropped : unexpected).push_back(source.tensor->name);
  }
  if (!unexpected.empty()) {
    refuse(fmt::format("{} in the weights that the model does not have: {}", counted(unexpected),
                       list_of(unexpected)),
           sources.find(current_name(unexpected.front()))->second.file->path(),
           "is this a model for another task?");
  }
  if (!dropped.empty()) {
    matched.notes.push_back(fmt::format("{} not used: {}", counted(dropped), list_of(dropped)));
  }
  if (!initialised.empty()) {
    matched.notes.push_back(fmt::format("{} not in the weights, initialised: {}",
                                        counted(initialised), list_of(initialised)));
  }
  return matched;
}

}  // namespace fsdp

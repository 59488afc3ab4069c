#include "checkpoint/weight_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/name_list.h"
#include "fsdp/error.h"
#include "io/printable_name.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string>;
using Sources = std::map<std::string, WeightSource, std::less<>>;

constexpr const char* kOtherModel = "these are another model's weights, or its names differ";

[[noreturn]] void refuse(std::string what, const std::filesystem::path& where, std::string hint) {
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what), .where = where.string(), .hint = std::move(hint)});
}

std::string_view module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot == name.npos ? 0 : dot);
}

// Many files are shards of a folder.
std::filesystem::path place_of(const std::vector<const WeightsFile*>& files) {
  if (files.empty()) return {};
  return files.size() == 1 ? files[0]->path() : files[0]->path().parent_path();
}

// Files it under the parameter that it means.
void add(Sources& sources, const WeightSource& source, const LoadOptions& options,
         LoadReport& report) {
  const std::string& stored = source.tensor->name;
  std::string name = options.parameter_name ? options.parameter_name(stored) : stored;
  if (name != stored) report.renamed.push_back(stored);
  const auto [at, is_new] = sources.emplace(std::move(name), source);
  if (!is_new) {
    refuse(fmt::format("tensors {} and {} both mean {}", quoted_name(at->second.tensor->name),
                       quoted_name(stored), quoted_name(at->first)),
           source.file->path(), "remove one of them");
  }
}

Sources collect(const WeightsFiles& from, const LoadOptions& options, LoadReport& report) {
  Sources sources, first;
  for (const WeightsFile* file : from.files) {
    for (const MappedTensor& tensor : file->tensors()) {
      add(sources, {file, &tensor}, options, report);
    }
  }
  if (from.instead == nullptr) return sources;
  for (const MappedTensor& tensor : from.instead->tensors()) {
    add(first, {from.instead, &tensor}, options, report);
  }
  for (const auto& [name, source] : first) {
    if (!sources.insert_or_assign(name, source).second) report.replaced.push_back(name);
  }
  return sources;
}

void check_fit(const WeightSource& source, const ExpectedTensor& expected) {
  const MappedTensor& tensor = *source.tensor;
  if (tensor.shape != expected.shape) {
    refuse(fmt::format("tensor {} has shape {}, the model expects {}", quoted_name(tensor.name),
                       format_shape(tensor.shape), format_shape(expected.shape)),
           source.file->path(), kOtherModel);
  }
  const auto dtype = engine_dtype(tensor.dtype);
  if (!dtype || !is_floating(*dtype)) {
    refuse(fmt::format("tensor {} is {}, which is no type of weights", quoted_name(tensor.name),
                       name_of(tensor.dtype)),
           source.file->path(), "convert it to F32, F16, BF16 or F64");
  }
}

// A head of which a part is missing was not meant to be initialised afresh.
void check_missing(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                   const LoadOptions& options, MatchedWeights& matched) {
  Names missing;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (matched.sources[i]) continue;
    bool is_whole = options.may_be_missing && options.may_be_missing(expected[i].fqn);
    for (size_t j = 0; j < expected.size() && is_whole; ++j) {
      is_whole = !matched.sources[j] || module_of(expected[j].fqn) != module_of(expected[i].fqn);
    }
    (is_whole ? matched.report.kept : missing).push_back(expected[i].fqn);
  }
  if (!missing.empty()) {
    refuse(fmt::format("{} of the model missing from the weights: {}", counted(missing, "tensor"),
                       list_of(missing)),
           place_of(files.files), kOtherModel);
  }
}

// Tied weights have several names in a file that shares their bytes.
bool is_other_name(const WeightSource& source, const MatchedWeights& matched) {
  const MappedTensor& tensor = *source.tensor;
  if (tensor.bytes.empty()) return false;
  return std::ranges::any_of(matched.sources, [&](const std::optional<WeightSource>& used) {
    return used && used->tensor->bytes.data() == tensor.bytes.data() &&
           used->tensor->shape == tensor.shape && used->tensor->strides == tensor.strides;
  });
}

// What the model has no parameter for.
void check_rest(const Sources& rest, const LoadOptions& options, MatchedWeights& matched) {
  LoadReport& report = matched.report;
  Names unexpected;
  std::filesystem::path where;
  for (const auto& [name, source] : rest) {
    const bool may_be_unused = options.may_be_unused && options.may_be_unused(name);
    if (may_be_unused || is_other_name(source, matched)) {
      report.unused.push_back(source.tensor->name);
    } else {
      if (unexpected.empty()) where = source.file->path();
      unexpected.push_back(source.tensor->name);
    }
  }
  if (!unexpected.empty()) {
    refuse(fmt::format("{} in the weights that the model does not have: {}",
                       counted(unexpected, "tensor"), list_of(unexpected)),
           where,
           fmt::format("{}; buffers are the caller's: LoadOptions::may_be_unused leaves them out",
                       kOtherModel));
  }
}

void add_notes(const WeightsFiles& files, LoadReport& report) {
  if (!report.replaced.empty()) {
    report.notes.push_back(fmt::format("taken from {} instead of the model: {}",
                                       files.instead->path().string(), list_of(report.replaced)));
  }
  if (!report.unused.empty()) {
    report.notes.push_back(
        fmt::format("{} not used: {}", counted(report.unused, "tensor"), list_of(report.unused)));
  }
  if (!report.kept.empty()) {
    report.notes.push_back(fmt::format("{} not in the weights, initialised: {}",
                                       counted(report.kept, "tensor"), list_of(report.kept)));
  }
}

}  // namespace

MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options) {
  MatchedWeights matched;
  Sources sources = collect(files, options, matched.report);
  for (const ExpectedTensor& tensor : expected) {
    const auto at = sources.find(tensor.fqn);
    matched.sources.emplace_back();
    if (at == sources.end()) continue;
    check_fit(at->second, tensor);
    matched.sources.back() = at->second;
    sources.erase(at);
  }
  check_missing(files, expected, options, matched);
  check_rest(sources, options, matched);
  add_notes(files, matched.report);
  return matched;
}

}  // namespace fsdp

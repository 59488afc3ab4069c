#include "checkpoint/weight_match.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/name_list.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

using Names = std::vector<std::string>;
using Sources = std::map<std::string, WeightSource, std::less<>>;

constexpr const char* kOtherModel = "use this model's weights: names and shapes must match";

[[noreturn]] void refuse(std::string what, const std::filesystem::path& where, std::string hint) {
  throw IoError(ExitCode::kCorruptData,
                {.what = std::move(what), .where = where.string(), .hint = std::move(hint)});
}

std::string_view module_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return name.substr(0, dot == name.npos ? 0 : dot);
}

// Returns the path that errors name. If there are several files, they are shards in one folder, and
// the result is this folder.
std::filesystem::path place_of(const std::vector<const WeightsFile*>& files) {
  if (files.empty()) return {};
  return files.size() == 1 ? files[0]->path() : files[0]->path().parent_path();
}

// Adds a tensor under the name of its parameter, which the options derive from the tensor's name.
void add(Sources& sources, const WeightSource& source, const LoadOptions& options,
         LoadReport& report) {
  const std::string& stored = source.tensor->name;
  std::string name = stored;
  if (name.starts_with(options.strip_prefix)) name.erase(0, options.strip_prefix.size());
  if (options.parameter_name) name = options.parameter_name(name);
  if (name != stored) report.renamed.push_back(stored);
  const auto [at, is_new] = sources.emplace(std::move(name), source);
  if (!is_new) {
    refuse(fmt::format("tensors {} and {} both map to the model's tensor {}",
                       quoted_name(at->second.tensor->name), quoted_name(stored),
                       quoted_name(at->first)),
           source.file->path(), "remove one of them from the file");
  }
}

void check_prefix(const WeightsFiles& from, const std::string& prefix) {
  for (const WeightsFile* file : from.files) {
    for (const MappedTensor& tensor : file->tensors()) {
      if (tensor.name.starts_with(prefix)) return;
    }
  }
  throw InvalidArgument(
      {.what = fmt::format("no tensor's name begins with {}", quoted_name(prefix)),
       .where = fmt::format("LoadOptions::strip_prefix, {}", place_of(from.files).string()),
       .hint = "run fsdp-inspect --summary to see how the names begin"});
}

Sources collect(const WeightsFiles& from, const LoadOptions& options, LoadReport& report) {
  if (!options.strip_prefix.empty()) check_prefix(from, options.strip_prefix);
  Sources sources, first;
  for (const WeightsFile* file : from.files) {
    for (const MappedTensor& tensor : file->tensors()) {
      add(sources, {file, &tensor}, options, report);
    }
  }
  if (from.instead == nullptr) return sources;
  // The tensors of `instead` are collected separately, because equal names are refused within each
  // set, but not between the two sets.
  for (const MappedTensor& tensor : from.instead->tensors()) {
    add(first, {from.instead, &tensor}, options, report);
  }
  for (const auto& [name, source] : first) {
    if (!sources.insert_or_assign(name, source).second) report.replaced.push_back(name);
  }
  return sources;
}

bool is_weight_type(StoredDType dtype) {
  const auto type = scalar_type_of(dtype);
  return type && c10::isFloatingType(*type);
}

void check_fit(const WeightSource& source, const ExpectedTensor& expected) {
  const MappedTensor& tensor = *source.tensor;
  if (tensor.shape != expected.shape) {
    refuse(fmt::format("tensor {} has shape {}, the model expects {}", quoted_name(tensor.name),
                       format_shape(tensor.shape), format_shape(expected.shape)),
           source.file->path(), kOtherModel);
  }
  const bool is_floating_type = is_weight_type(tensor.dtype);
  if (expected.buffer) {
    if (tensor.dtype == *expected.buffer) return;
    // Floating types can be converted to each other. Other types, such as those of counters, must
    // be equal.
    if (is_floating_type && is_weight_type(*expected.buffer)) return;
    refuse(fmt::format("tensor {} has type {}, the model's buffer has type {}",
                       quoted_name(tensor.name), name_of(tensor.dtype), name_of(*expected.buffer)),
           source.file->path(), kOtherModel);
  }
  if (!is_floating_type) {
    refuse(fmt::format("tensor {} has type {}, which weights cannot have", quoted_name(tensor.name),
                       name_of(tensor.dtype)),
           source.file->path(), "convert it to F32, F16, BF16 or F64");
  }
}

// Returns a prefix for which every name in `names`, with the prefix in front, is an unused tensor.
// Returns an empty string if there is no such prefix.
std::string shared_prefix(const Names& names, const Sources& rest) {
  for (const auto& [stored, source] : rest) {
    if (!stored.ends_with("." + names[0])) continue;
    std::string prefix = stored.substr(0, stored.size() - names[0].size());
    const bool shared = std::ranges::all_of(
        names, [&](const std::string& name) { return rest.contains(prefix + name); });
    if (shared) return prefix;
  }
  return {};
}

// Throws for missing parameters that the options do not allow to be missing. Also throws if the
// options allow a parameter to be missing, but the files have other parameters of its module: a
// module keeps all its initial values or none.
void check_missing(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                   const LoadOptions& options, const Sources& rest, MatchedWeights& matched) {
  Names missing;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (matched.sources[i] || expected[i].buffer) continue;
    bool is_whole = options.may_be_missing && options.may_be_missing(expected[i].fqn);
    for (size_t j = 0; j < expected.size() && is_whole; ++j) {
      is_whole = !matched.sources[j] || module_of(expected[j].fqn) != module_of(expected[i].fqn);
    }
    (is_whole ? matched.report.kept : missing).push_back(expected[i].fqn);
  }
  if (missing.empty()) return;
  const std::string prefix = shared_prefix(missing, rest);
  refuse(fmt::format("the weights lack {} of the model: {}", counted(missing, "tensor"),
                     list_of(missing)),
         place_of(files.files),
         prefix.empty()
             ? kOtherModel
             : fmt::format("set LoadOptions::strip_prefix = \"{}\": the file has names such as {}",
                           printable(prefix), quoted_name(prefix + missing[0])));
}

// Returns true if the source is another name of a tensor that is used already. Files may store tied
// weights once, under several names.
bool is_other_name(const WeightSource& source, const MatchedWeights& matched) {
  const MappedTensor& tensor = *source.tensor;
  if (tensor.bytes.empty()) return false;
  return std::ranges::any_of(matched.sources, [&](const std::optional<WeightSource>& used) {
    return used && used->tensor->bytes.data() == tensor.bytes.data() &&
           used->tensor->shape == tensor.shape && used->tensor->strides == tensor.strides;
  });
}

// Throws if a tensor belongs to no parameter of the model, unless the options allow it.
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
    refuse(fmt::format("the weights have {} that the model does not have: {}",
                       counted(unexpected, "tensor"), list_of(unexpected)),
           where,
           fmt::format("{}; or list the extra tensors in LoadOptions::may_be_unused", kOtherModel));
  }
}

// Reports the buffers that the load leaves unchanged, if the files contain other buffers of the
// model.
void note_kept_buffers(std::span<const ExpectedTensor> expected, MatchedWeights& matched) {
  Names kept;
  bool any = false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!expected[i].buffer) continue;
    any |= matched.sources[i].has_value();
    if (!matched.sources[i]) kept.push_back(expected[i].fqn);
  }
  if (!any || kept.empty()) return;
  matched.report.notes.push_back(fmt::format("the weights lack {}, left unchanged: {}",
                                             counted(kept, "buffer"), list_of(kept)));
}

void add_notes(const WeightsFiles& files, LoadReport& report) {
  if (!report.replaced.empty()) {
    report.notes.push_back(fmt::format("loaded from {} instead of the model folder: {}",
                                       files.instead->path().string(), list_of(report.replaced)));
  }
  if (!report.unused.empty()) {
    report.notes.push_back(fmt::format("ignored {} of the weights: {}",
                                       counted(report.unused, "tensor"), list_of(report.unused)));
  }
  if (!report.kept.empty()) {
    report.notes.push_back(fmt::format("the weights lack {}, left at the initial values: {}",
                                       counted(report.kept, "tensor"), list_of(report.kept)));
  }
  if (!report.copies.empty()) {
    const bool one = report.copies.size() == 1;
    report.notes.push_back(
        fmt::format("ignored {} of tied weights, equal to {}: {}",
                    one ? "1 copy" : fmt::format("{} copies", report.copies.size()),
                    one ? "the original" : "the originals", list_of(report.copies)));
  }
}

// Takes the source of a tensor from the first of its names that the files contain. If the files
// contain further names of the tensor with separate bytes, these are listed as copies.
void match(size_t index, const ExpectedTensor& expected, Sources& sources,
           MatchedWeights& matched) {
  std::optional<WeightSource>& source = matched.sources.emplace_back();
  const auto take = [&](const std::string& name) {
    const auto at = sources.find(name);
    if (at == sources.end()) return;
    if (!source) {
      check_fit(at->second, expected);
      source = at->second;
    } else if (is_other_name(at->second, matched)) {
      return;  // check_rest reports it
    } else {
      check_fit(at->second, expected);
      matched.copies.push_back({index, at->second});
      matched.report.copies.push_back(at->second.tensor->name);
    }
    // check_rest checks the tensors that remain in `sources`.
    sources.erase(at);
  };
  take(expected.fqn);
  for (const std::string& alias : expected.aliases) take(alias);
}

}  // namespace

MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options) {
  MatchedWeights matched;
  Sources sources = collect(files, options, matched.report);
  for (size_t i = 0; i < expected.size(); ++i) match(i, expected[i], sources, matched);
  check_missing(files, expected, options, sources, matched);
  check_rest(sources, options, matched);
  add_notes(files, matched.report);
  note_kept_buffers(expected, matched);
  return matched;
}

void refuse_copy(const MatchedWeights& matched, const MatchedWeights::Copy& copy) {
  refuse(fmt::format("tensors {} and {} differ, but the model ties them to one parameter",
                     quoted_name(matched.sources[copy.of]->tensor->name),
                     quoted_name(copy.source.tensor->name)),
         copy.source.file->path(),
         "remove one of them from the file, or do not tie the weights in the model");
}

}  // namespace fsdp

#include <c10/core/GradMode.h>
#include <fsdp/agreement.h>
#include <fsdp/engine.h>
#include <fsdp/safetensors_folder.h>

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/read_interval.h"
#include "checkpoint/torch_archive.h"
#include "checkpoint/weight_match.h"
#include "engine/engine_state.h"
#include "fsdp/checkpoint.h"
#include "io/safetensors_index.h"

namespace fsdp {
namespace {

constexpr std::string_view kReading = "reading the weights";
// Of a folder as transformers wrote it before safetensors.
constexpr std::string_view kPickledWeights = "pytorch_model.bin";

// Of all parameters, as they lie in memory, in the order of sharded_parameters.
std::vector<std::vector<int64_t>> strides_of(Engine& engine) {
  std::vector<std::vector<int64_t>> strides;
  for (const auto& unit : engine.state().units) {
    for (const ParameterSpec& spec : unit->shard->layout().parameters()) {
      strides.push_back(spec.strides);
    }
  }
  return strides;
}

// On this rank alone.
LoadReport load_intervals(Engine& engine, const WeightsFiles& files, const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  const std::vector<ShardedParameter> parameters = engine.sharded_parameters();
  const std::vector<std::vector<int64_t>> strides = strides_of(engine);
  std::vector<ExpectedTensor> expected;
  for (const ShardedParameter& parameter : parameters) {
    expected.push_back({.fqn = parameter.fqn, .shape = parameter.shape});
  }
  MatchedWeights matched = match_weights(files, expected, options);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!matched.sources[i]) continue;
    const at::Tensor& local = parameters[i].local;
    read_interval(*matched.sources[i]->file, *matched.sources[i]->tensor,
                  {.strides = strides[i], .begin = parameters[i].begin, .numel = local.numel()},
                  [&](int64_t at, const at::Tensor& values) {
                    local.narrow(0, at, values.numel()).copy_(values);
                  });
  }
  return std::move(matched.report);
}

// Whatever the files are; `notes` come before the report's.
LoadReport load_files(Engine& engine, WeightsFiles files, const LoadOptions& options,
                      std::span<const std::string> notes) {
  std::optional<SafetensorsWeights> instead;
  if (options.instead != nullptr) files.instead = &instead.emplace(*options.instead);
  LoadReport report = load_intervals(engine, files, options);
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  return report;
}

LoadReport load_safetensors(Engine& engine, std::span<const SafetensorsFile> files,
                            const LoadOptions& options, std::span<const std::string> notes = {}) {
  std::deque<SafetensorsWeights> weights;
  WeightsFiles from;
  for (const SafetensorsFile& file : files) from.files.push_back(&weights.emplace_back(file));
  return load_files(engine, std::move(from), options, notes);
}

// Where a folder has both, safetensors are read.
bool is_pickled_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path / kPickledWeights, ignored) &&
         !std::filesystem::exists(path / kWeightsFile, ignored) &&
         !std::filesystem::exists(path / kWeightsIndex, ignored);
}

}  // namespace

LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options) {
  LoadReport report;
  refuse_together(engine.mesh(), kReading,
                  [&] { report = load_safetensors(engine, files, options); });
  return report;
}

LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options) {
  LoadReport report;
  refuse_together(engine.mesh(), kReading, [&] {
    std::error_code ignored;
    const std::filesystem::path archive_path =
        is_pickled_folder(path) ? path / kPickledWeights : path;
    if (TorchArchive::is_one(archive_path)) {
      const TorchArchive archive(archive_path);
      report = load_files(engine, {.files = {&archive}}, options, archive.notes());
    } else if (std::filesystem::is_directory(path, ignored)) {
      const SafetensorsFolder folder(path);
      report = load_safetensors(engine, folder.files(), options, folder.notes());
    } else {
      const SafetensorsFile file(path);
      report = load_safetensors(engine, {&file, 1}, options);
    }
  });
  return report;
}

}  // namespace fsdp

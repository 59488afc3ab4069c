#include <c10/core/GradMode.h>
#include <fsdp/agreement.h>
#include <fsdp/engine.h>
#include <fsdp/safetensors_folder.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/main_state_writer.h"
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

// On this rank alone.
LoadReport load_intervals(const EngineState& engine, const WeightsFiles& files,
                          const LoadOptions& options) {
  const at::NoGradGuard no_grad;
  std::vector<ExpectedTensor> expected;
  for (const auto& unit : engine.units) {
    for (const ParameterSpec& spec : unit->shard->layout().parameters()) {
      expected.push_back({.fqn = spec.fqn, .shape = spec.shape});
    }
  }
  MatchedWeights matched = match_weights(files, expected, options);
  const MainStateWriter writer(*engine.context);
  auto source = matched.sources.begin();
  for (const auto& unit : engine.units) {
    const ShardUnit& shard = *unit->shard;
    for (size_t i = 0; i < shard.tensors().size(); ++i, ++source) {
      if (!*source) continue;
      const int parameter = static_cast<int>(i);
      const Interval& local = shard.main().local(parameter);
      float* place = shard.main().data(shard.layout().segment_of(parameter)) + local.offset;
      read_interval(
          *(*source)->file, *(*source)->tensor,
          {.strides = shard.layout().parameters()[i].strides,
           .begin = local.begin,
           .numel = local.numel},
          [&](int64_t at, std::span<const float> values) { writer.write(place + at, values); });
    }
  }
  return std::move(matched.report);
}

// Whatever the files are; `notes` come before the report's.
LoadReport load_files(const EngineState& engine, WeightsFiles files, const LoadOptions& options,
                      std::span<const std::string> notes) {
  std::optional<SafetensorsWeights> instead;
  if (options.instead != nullptr) files.instead = &instead.emplace(*options.instead);
  LoadReport report = load_intervals(engine, files, options);
  report.notes.insert(report.notes.begin(), notes.begin(), notes.end());
  return report;
}

LoadReport load_safetensors(const EngineState& engine, std::span<const SafetensorsFile> files,
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

LoadReport load_together(Engine& engine,
                         const std::function<LoadReport(const EngineState&)>& load) {
  EngineState& state = engine.state();
  state.require_between_passes("load_weights");
  LoadReport report;
  const Outcome outcome = work_together(engine.mesh(), kReading, [&] { report = load(state); });
  {
    const std::lock_guard lock(state.clock->mutex);
    for (const auto& unit : state.units) unit->shard->mark_changed(/*copies_written=*/false);
  }
  end_together(engine.mesh(), outcome);
  return report;
}

}  // namespace

LoadReport load_weights(Engine& engine, std::span<const SafetensorsFile> files,
                        const LoadOptions& options) {
  return load_together(
      engine, [&](const EngineState& state) { return load_safetensors(state, files, options); });
}

LoadReport load_weights(Engine& engine, const std::filesystem::path& path,
                        const LoadOptions& options) {
  return load_together(engine, [&](const EngineState& state) {
    std::error_code ignored;
    const std::filesystem::path archive_path =
        is_pickled_folder(path) ? path / kPickledWeights : path;
    if (TorchArchive::is_one(archive_path)) {
      const TorchArchive archive(archive_path);
      return load_files(state, {.files = {&archive}}, options, archive.notes());
    }
    if (std::filesystem::is_directory(path, ignored)) {
      const SafetensorsFolder folder(path);
      return load_safetensors(state, folder.files(), options, folder.notes());
    }
    const SafetensorsFile file(path);
    return load_safetensors(state, {&file, 1}, options);
  });
}

}  // namespace fsdp

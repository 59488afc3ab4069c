#include <c10/core/GradMode.h>
#include <fsdp/agreement.h>
#include <fsdp/engine.h>
#include <fsdp/safetensors_folder.h>

#include <deque>
#include <utility>

#include "checkpoint/read_interval.h"
#include "checkpoint/weight_match.h"
#include "engine/engine_state.h"
#include "fsdp/checkpoint.h"

namespace fsdp {
namespace {

constexpr std::string_view kReading = "reading the weights";

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

LoadReport load_safetensors(Engine& engine, std::span<const SafetensorsFile> files,
                            const LoadOptions& options) {
  std::deque<SafetensorsWeights> weights;
  WeightsFiles from;
  for (const SafetensorsFile& file : files) from.files.push_back(&weights.emplace_back(file));
  if (options.instead != nullptr) from.instead = &weights.emplace_back(*options.instead);
  return load_intervals(engine, from, options);
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
    if (std::filesystem::is_directory(path, ignored)) {
      const SafetensorsFolder folder(path);
      report = load_safetensors(engine, folder.files(), options);
      report.notes.insert(report.notes.begin(), folder.notes().begin(), folder.notes().end());
    } else {
      const SafetensorsFile file(path);
      report = load_safetensors(engine, {&file, 1}, options);
    }
  });
  return report;
}

}  // namespace fsdp

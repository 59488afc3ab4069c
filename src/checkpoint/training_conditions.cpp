#include "checkpoint/training_conditions.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "libtorch/torch_compat.h"
#include "plan/placement.h"

namespace fsdp {

std::map<std::string, std::string> training_conditions(const EngineParts& engine) {
  const Options& options = engine.model.options;
  const Mesh& mesh = engine.context->mesh;
  const auto& param_dtype = options.mixed_precision.param_dtype;
  return {{"strategy", std::string(name_of(options.strategy))},
          {"mesh", fmt::format("{} x {}", mesh.size(Axis::kReplicate), mesh.size(Axis::kShard))},
          {"param_dtype", param_dtype ? torch_compat::type_name(*param_dtype) : "float32"},
          {"offload", options.cpu_offload ? "true" : "false"},
          {"libtorch", TORCH_VERSION},
          {"threads per rank", fmt::format("{}", at::get_num_threads())},
          {"cpu capability", at::get_cpu_capability()},
          {"device", engine.context->streams.torch_device.is_cpu() ? "cpu" : "cuda"}};
}

std::vector<std::string> differences(const std::map<std::string, std::string>& now,
                                     const std::map<std::string, std::string>& saved) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : now) {
    const auto before = saved.find(name);
    if (before == saved.end() || before->second == value) continue;
    lines.push_back(fmt::format("{}: {}, the checkpoint was saved with {}: bits may differ", name,
                                value, before->second));
  }
  return lines;
}

}  // namespace fsdp

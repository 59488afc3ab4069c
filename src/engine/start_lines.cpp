#include "engine/start_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/placement.h"
#include "shard/parameter_seats.h"

namespace fsdp {

std::string name_or_unset(const std::optional<DType>& dtype) {
  return dtype ? std::string(name_of(*dtype)) : "unset";
}

std::vector<std::string> describe_options(const Options& options) {
  return {fmt::format("param_dtype {}", name_or_unset(options.param_dtype)),
          fmt::format("reduce_dtype {}", name_of(options.reduce_dtype)),
          fmt::format("output_dtype {}", name_or_unset(options.output_dtype)),
          fmt::format("cast_forward_inputs {}", options.cast_forward_inputs),
          fmt::format("reshard_after_forward {}", options.reshard_after_forward),
          fmt::format("keep_last_units {}", options.keep_last_units),
          fmt::format("prefetch_units {}", options.prefetch_units),
          fmt::format("map_shards {}", options.map_shards),
          fmt::format("cpu_offload {}", options.cpu_offload),
          fmt::format("memory_limit {}", options.memory_limit),
          fmt::format("try_beyond_plan {}", options.try_beyond_plan),
          fmt::format("nccl_registration {}", static_cast<int>(options.nccl_registration)),
          fmt::format("strategy {}", name_of(options.strategy)),
          fmt::format("gradient_reduction {}", static_cast<int>(options.gradient_reduction)),
          fmt::format("gradient_divide_factor {}", options.gradient_divide_factor.value_or(0)),
          fmt::format("seed {}", options.seed)};
}

std::vector<std::string> describe_model(const std::vector<FoundUnit>& units,
                                        const std::vector<UnitRules>& rules,
                                        const std::vector<UnitOptions>& options) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < units.size(); ++i) {
    lines.push_back(fmt::format(
        "{} param_dtype {} cast_forward_inputs {} reshard_after_forward {} prefetch {} "
        "unshard_in_backward {} strategy {} recompute {}",
        name_of_unit(units[i].fqn), name_or_unset(options[i].param_dtype),
        *options[i].cast_forward_inputs, rules[i].reshard_after_forward, rules[i].prefetch_units,
        rules[i].unshard_in_backward, name_of(*options[i].strategy), *options[i].recompute));
    for (const FoundParameter& found : units[i].parameters) {
      const at::Tensor& tensor = found.tensor;
      lines.push_back(fmt::format(
          "parameter '{}' [{}] strides [{}] {}{}", found.fqn, fmt::join(tensor.sizes().vec(), ", "),
          fmt::join(tensor.strides().vec(), ", "), c10::toString(tensor.scalar_type()),
          tensor.requires_grad() ? "" : " frozen"));
    }
  }
  return lines;
}

}  // namespace fsdp

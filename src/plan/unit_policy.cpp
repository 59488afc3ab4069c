#include "fsdp/unit_policy.h"

#include <fmt/format.h>

#include <utility>

namespace fsdp {

UnitPolicy each_child_of(std::string fqn) {
  std::string described = fmt::format("each_child_of(\"{}\")", fqn);
  const std::string prefix = fqn.empty() ? "" : fqn + ".";
  return {std::move(described), [prefix](std::string_view name, const torch::nn::Module&) {
            return name.starts_with(prefix) &&
                   name.find('.', prefix.size()) == std::string_view::npos;
          }};
}

UnitPolicy by_name(std::function<bool(std::string_view fqn)> chooses) {
  return {"by_name",
          [chooses = std::move(chooses)](std::string_view name, const torch::nn::Module&) {
            return chooses(name);
          }};
}

}  // namespace fsdp

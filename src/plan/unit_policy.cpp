#include "fsdp/unit_policy.h"

#include <fmt/format.h>

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// Both policies may choose the same module if they agree on the number of layers. If a policy
// returns 0 layers, it does not choose the module.
UnitPolicy operator|(const UnitPolicy& a, const UnitPolicy& b) {
  if (!a.is_set()) return b;
  if (!b.is_set()) return a;
  return {
      a.described_ + " | " + b.described_, [a, b](std::string_view fqn, const auto& module) {
        const int by_a = a.layers_of_unit(fqn, module), by_b = b.layers_of_unit(fqn, module);
        if (by_a == by_b || by_a == 0 || by_b == 0) return by_a + (by_a == 0 ? by_b : 0);
        throw InvalidArgument(
            {.what = fmt::format(
                 "two policies choose '{}': {} for a unit of {} layers, {} for a unit of {} layers",
                 fqn, a.described(), by_a, b.described(), by_b),
             .where = "Options::units",
             .hint = "let only one policy choose this module"});
      }};
}

UnitPolicy each_child_of(std::string fqn, int layers) {
  std::string described = layers == 1 ? fmt::format("each_child_of(\"{}\")", fqn)
                                      : fmt::format("each_child_of(\"{}\", {})", fqn, layers);
  if (layers < 1) {
    throw InvalidArgument(
        {.what = fmt::format("{}: a unit has {} layers, expected 1 or more", described, layers),
         .hint =
             "use 1 to make each child a unit, or k to put k neighbouring children into a unit"});
  }
  // The name of a direct child has no further dot after the prefix.
  const std::string prefix = fqn.empty() ? "" : fqn + ".";
  return {std::move(described), [prefix, layers](std::string_view name, const torch::nn::Module&) {
            const bool is_child =
                name.starts_with(prefix) && name.find('.', prefix.size()) == std::string_view::npos;
            return is_child ? layers : 0;
          }};
}

UnitPolicy by_name(std::function<bool(std::string_view fqn)> chooses) {
  return {"by_name",
          [chooses = std::move(chooses)](std::string_view name, const torch::nn::Module&) {
            return chooses(name);
          }};
}

}  // namespace fsdp

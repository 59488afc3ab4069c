#include "kernels/update.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include <type_traits>

#include "kernels/checks.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {
namespace {

// Most rules accept every option and segment.
template <class Rule>
void check(const Rule& /*rule*/, std::span<const UpdateSegment> /*segments*/) {}

// Throws the error that the headers of these rules list.
template <class Rule>
requires std::is_same_v<Rule, RAdam> || std::is_same_v<Rule, Lamb> || std::is_same_v<Rule, Average>
void check(const Rule& /*rule*/, std::span<const UpdateSegment> segments) {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].numel == 0 || segments[i].step != nullptr) continue;
    throw InvalidArgument({.what = fmt::format("{}: segment {} has no step", Rule::kName, i),
                           .hint = "set the step of every segment"});
  }
}

// Throws the errors that kernels/sgd.h lists. An empty segment may have null pointers, because a
// rank may own no element of a parameter.
void check(const Sgd& rule, std::span<const UpdateSegment> segments) {
  if (rule.nesterov && (rule.momentum == 0 || rule.dampening != 0)) {
    throw InvalidArgument(
        {.what = fmt::format("sgd: nesterov is set with momentum {} and dampening {}",
                             rule.momentum, rule.dampening),
         .hint = "for nesterov set momentum above 0 and dampening to 0"});
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    if (rule.momentum == 0 || segments[i].numel == 0) continue;
    if (segments[i].moments[0] != nullptr && segments[i].step != nullptr) continue;
    throw InvalidArgument(
        {.what = fmt::format("sgd: segment {} has no {}", i,
                             segments[i].step == nullptr ? "step" : "momentum buffer"),
         .hint = "with momentum, set the step and the momentum buffer of every segment"});
  }
}

}  // namespace

void update(Stream& stream, std::span<const UpdateSegment> segments, const UpdateRule& rule,
            const UpdateScalars& scalars) {
  std::visit(
      [&](const auto& of) {
        check(of, segments);
        for (const UpdateSegment& segment : segments) {
          require_low_precision(of.kName, segment.low_precision_dtype);
        }
      },
      rule);
  kernels_of(stream).update(stream, segments, rule, scalars);
}

}  // namespace fsdp::kernels

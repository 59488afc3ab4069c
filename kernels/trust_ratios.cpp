#include "kernels/trust_ratios.h"

#include <fmt/format.h>
#include <fsdp/error.h>

#include "kernels/element/trust_ratios.h"
#include "kernels/kernel_table.h"

namespace fsdp::kernels {

int64_t sum_scratch_bytes(std::span<const SumNode> nodes) {
  int64_t blocks = 0;
  for (const SumNode& each : nodes) blocks += blocks_for(each.elements.numel);
  return blocks * static_cast<int64_t>(sizeof(SquareSums));
}

void sum_squares(Stream& stream, std::span<const SumNode> nodes, const UpdateRule& rule,
                 const float* grad_scale, void* scratch) {
  std::visit(
      [](const auto& of) {
        if constexpr (!kHasTerms<std::remove_cvref_t<decltype(of)>>) {
          throw InvalidArgument(
              {.what = fmt::format("{} has no trust ratio", of.kName), .hint = "use Lamb or Sgd"});
        }
      },
      rule);
  kernels_of(stream).sum_squares(stream, nodes, rule, grad_scale, scratch);
}

void trust_ratios(Stream& stream, std::span<const TrustParameter> parameters, SquareSums* sums,
                  const TrustFormula& formula) {
  kernels_of(stream).trust_ratios(stream, parameters, sums, formula);
}

}  // namespace fsdp::kernels

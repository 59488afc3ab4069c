#include "plan/remedies.h"

#include "runtime/dtype.h"

namespace fsdp {

std::vector<Remedy> remedies(const Options& options, const RemedyCase& of) {
  std::vector<Remedy> ways;  // cheapest first
  const auto option = [&](std::string_view text, std::string_view flag, void (*apply)(Options&)) {
    ways.push_back({.text = text, .flag = flag, .apply = apply});
  };
  if (of.gathers && options.keep_last_units > 0) {
    option("keep_last_units = 0", "--keep-last-units 0",
           [](Options& changed) { changed.keep_last_units = 0; });
  }
  if (of.gathers && !options.reshard_after_forward) {
    option("reshard_after_forward = true", "--reshard-after-forward true",
           [](Options& changed) { changed.reshard_after_forward = true; });
  }
  if (of.gathers && options.prefetch_units > 0) {
    option("prefetch_units = 0", "--prefetch 0",
           [](Options& changed) { changed.prefetch_units = 0; });
  }
  if (!of.reduces) {
    ways.push_back({.kind = RemedyKind::kReduceMore,
                    .text = "fewer backwards under GradSync(false)",
                    .flag = {}});
  }
  if (options.strategy != Strategy::kFullShard && !of.one_rank) {
    option("strategy = kFullShard", "--strategy full-shard",
           [](Options& changed) { changed.strategy = Strategy::kFullShard; });
  }
  if (of.for_tensors && options.recompute != 1) {
    option("recompute = 1", "--recompute", [](Options& changed) { changed.recompute = 1; });
  }
  if (!options.cpu_offload && of.host_is_other) {
    option("cpu_offload = true", "--offload", [](Options& changed) { changed.cpu_offload = true; });
  }
  // A narrower type shrinks gathered slots and LibTorch's tensors, but main state stays fp32. So it
  // does not help if only the engine's bytes count and nothing is gathered.
  const c10::ScalarType float32 = scalar_type_of(DType::kFloat32);
  const bool is_wide = options.mixed_precision.param_dtype.value_or(float32) == float32;
  if (is_wide && (of.for_tensors || of.gathers)) {
    option("mixed_precision.param_dtype = kBFloat16", "--param-dtype bfloat16",
           [](Options& changed) {
             changed.mixed_precision.param_dtype = scalar_type_of(DType::kBFloat16);
           });
  }
  if (of.for_tensors) {
    ways.push_back(
        {.kind = RemedyKind::kSmallerBatch, .text = "a smaller batch", .flag = "a smaller batch"});
  }
  ways.push_back({.kind = RemedyKind::kMoreRanks, .text = "more ranks", .flag = "more ranks"});
  return ways;
}

}  // namespace fsdp

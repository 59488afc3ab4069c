#include <fmt/format.h>

#include "fsdp/error.h"
#include "optim/adam_options.h"

namespace fsdp {
namespace {

static_assert(AdamW8bit::kBlockNumel == kernels::kQuantizedBlock);

// AdamW8bit's options. The update rule is that of AdamW, with quantized moments.
struct AdamW8bitState final : AdamState<AdamW8bitOptions> {
  AdamW8bitState(Engine& owner, AdamW8bitOptions from)
      : AdamState(owner, "AdamW8bit", std::move(from), /*adapts=*/false, /*quantizes=*/true) {}

  kernels::UpdateRule rule() const override {
    return kernels::AdamW{.beta1 = options.beta1, .beta2 = options.beta2, .eps = options.eps};
  }
};

// Returns the engine. Throws if it may divide a block between ranks.
Engine& with_whole_blocks(Engine& engine) {
  const int64_t granule = engine.options().shard_granule;
  if (granule % AdamW8bit::kBlockNumel == 0) return engine;
  throw InvalidArgument(
      {.what = fmt::format("Options::shard_granule is {}, but AdamW8bit needs a multiple of {}",
                           granule, AdamW8bit::kBlockNumel),
       .where = "fsdp::AdamW8bit",
       .cause = "ranks could divide a block of its state",
       .hint = "set shard_granule = fsdp::AdamW8bit::kBlockNumel in the options of the engine (or "
               "of its BuildScope)"});
}

}  // namespace

AdamW8bit::AdamW8bit(Engine& engine, AdamW8bitOptions options)
    : Optimizer(std::make_unique<AdamW8bitState>(with_whole_blocks(engine),
                                                 checked_adam("AdamW8bit", std::move(options)))) {}

}  // namespace fsdp

// Checks that GPU kernels of optimizers compute the same bits as the CPU.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/update.h"
#include "kernels/update_blocks.h"
#include "kernels_simulated/support/same_bits.h"

namespace fsdp::kernels {
namespace {

using test::Arena;
using test::check_same_bits;
using test::for_each_size;

// The number of entries of a table that needs several launches.
constexpr int kMany = 600;

struct Updated {
  int64_t param, grad, first, second, copy, step, numel;
};

std::vector<Updated> updates_of(Arena& arena, bool many) {
  std::vector<Updated> updates;
  const auto add = [&](int64_t numel, int64_t at, int64_t other) {
    const StepCount step{1 + at, 1.25, 0.5, at % 2 == 0 ? 0.75 : 0.0};
    updates.push_back({.param = arena.floats(numel, at * 4),
                       .grad = arena.floats(numel, at * 4, false, 0.1F),
                       .first = arena.floats(numel, at * 4),
                       .second = arena.floats(numel, other * 4, true, 0.01F),
                       .copy = arena.take(numel * 2, at * 2),
                       .step = arena.value(step),
                       .numel = numel});
  };
  if (many) {
    for (int i = 0; i < kMany; ++i) add(i * 7 % 97, i % 4, i % 4);
  } else {
    for_each_size(4, add);
  }
  return updates;
}

UpdateSegment segment_of(const Updated& each, std::byte* base, size_t i) {
  UpdateSegment segment;
  segment.param = reinterpret_cast<float*>(base + each.param);
  segment.grad = reinterpret_cast<const float*>(base + each.grad);
  segment.low_precision_copy = i % 3 == 0 ? nullptr : base + each.copy;
  segment.low_precision_dtype = i % 3 == 1 ? DType::kBFloat16 : DType::kFloat16;
  segment.numel = each.numel;
  segment.lr = 1e-3 * static_cast<double>(i + 1);
  segment.weight_decay = i % 2 == 0 ? 0.1 : 0.0;
  segment.step = reinterpret_cast<const StepCount*>(base + each.step);
  return segment;
}

// Compares updates by `rule`, with and without copies, decay and a scale. If `counts` is false,
// some segments have no step counter.
void check_updates(const UpdateRule& rule, size_t moments, bool many, bool counts = true) {
  Arena arena;
  const std::vector<Updated> updates = updates_of(arena, many);
  const int64_t scale = arena.value(0.7F);
  const int64_t ratio = arena.value(0.3F);
  check_same_bits(arena, [&](Stream& stream, std::byte* base) {
    std::vector<UpdateSegment> segments;
    for (size_t i = 0; i < updates.size(); ++i) {
      auto segment = segment_of(updates[i], base, i);
      if (i % 4 == 0) segment.trust_ratio = reinterpret_cast<const float*>(base + ratio);
      // The last moment is a second moment, which is not negative.
      const int64_t at[] = {moments == 2 ? updates[i].first : updates[i].second, updates[i].second};
      for (size_t j = 0; j < moments; ++j) {
        segment.moments[j] = reinterpret_cast<float*>(base + at[j]);
      }
      if (!counts && i % 5 == 0) segment.step = nullptr;
      segments.push_back(segment);
    }
    update(stream, segments, rule, {.grad_scale = reinterpret_cast<const float*>(base + scale)});
  });
}

TEST_CASE("updates by every rule") {
  for (const bool many : {false, true}) {
    check_updates(AdamW{}, 2, many, /*counts=*/false);
    check_updates(Sgd{.momentum = 0.9, .nesterov = true}, 1, many);
    if (many) continue;
    check_updates(Sgd{}, 0, many);
    check_updates(Sgd{.momentum = 0.9, .dampening = 0.1}, 1, many);
    check_updates(RAdam{}, 2, many);
    check_updates(RAdam{.decoupled_weight_decay = true}, 2, many);
    check_updates(Lion{}, 1, many, /*counts=*/false);
    check_updates(Lamb{}, 2, many);
    check_updates(Average{}, 0, many);
    check_updates(Average{.warmup = false}, 0, many);
  }
}

TEST_CASE("updates with quantized moments") {
  for (const bool many : {false, true}) {
    Arena arena;
    struct Blocks {
      int64_t codes[2], absmax[2];
    };
    const std::vector<Updated> updates = updates_of(arena, many);
    std::vector<Blocks> blocks;
    for (const Updated& each : updates) {
      const int64_t count = (each.numel + kQuantizedBlock - 1) / kQuantizedBlock;
      // Some codes are not aligned to vectors, although the elements are.
      const auto codes = [&] {
        return arena.random_bytes(each.numel, static_cast<int64_t>(blocks.size() % 2) * 2);
      };
      blocks.push_back({.codes = {codes(), codes()},
                        .absmax = {arena.floats(count, 0, /*positive=*/true),
                                   arena.floats(count, 4, /*positive=*/true, 0.01F)}});
    }
    const int64_t scale = arena.value(0.7F);
    check_same_bits(arena, [&](Stream& stream, std::byte* base) {
      std::vector<BlockSegment> segments;
      for (size_t i = 0; i < updates.size(); ++i) {
        const auto moment = [&](int j) {
          return QuantizedMoment{.codes = reinterpret_cast<uint8_t*>(base + blocks[i].codes[j]),
                                 .absmax = reinterpret_cast<float*>(base + blocks[i].absmax[j])};
        };
        segments.push_back({segment_of(updates[i], base, i), moment(0), moment(1)});
        if (i % 5 == 0) segments.back().elements.step = nullptr;
      }
      update_blocks(stream, segments, AdamW{},
                    {.grad_scale = reinterpret_cast<const float*>(base + scale)});
    });
  }
}

}  // namespace
}  // namespace fsdp::kernels

#include "on_gpu/support/kernel_cases.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/count_steps.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/grad_norm.h"
#include "kernels/reduce.h"
#include "kernels/update.h"
#include "kernels/update_blocks.h"

namespace fsdp::test {
namespace {

using namespace kernels;

constexpr std::array<int64_t, 5> kNumels{1, 7, 1009, 4099, 3 * 4096 + 5};
constexpr std::array kTypes{DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// The operands of one table entry, as offsets.
struct Entry {
  int64_t numel = 0, source = 0, other = 0, third = 0, narrow = 0, step = 0;
};

int64_t elements(Arena& arena, DType type, int64_t numel, int64_t misaligned) {
  const int64_t size = size_of(type);
  if (type == DType::kFloat32) return arena.floats(numel, misaligned * size);
  const int64_t begin = arena.random_bytes(numel * size, misaligned * size);
  arena.clear_high_bits(begin, numel, size);  // no NaN: a sum of two NaNs may be either of them
  return begin;
}

template <class T>
T* operand(std::byte* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

std::vector<Entry> copied(Arena& arena, DType from, DType to) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < kNumels.size(); ++i) {
    const auto misaligned = static_cast<int64_t>(i % 3);
    entries.push_back({.numel = kNumels[i],
                       .source = elements(arena, from, kNumels[i], misaligned),
                       .other = elements(arena, to, kNumels[i], 1)});
  }
  return entries;
}

template <class Run>
std::vector<Run> runs_of(const std::vector<Entry>& entries, std::byte* base, DType from, DType to) {
  std::vector<Run> runs;
  for (const Entry& each : entries) {
    runs.push_back({.source = base + each.source,
                    .destination = base + each.other,
                    .numel = each.numel,
                    .source_dtype = from,
                    .destination_dtype = to});
  }
  return runs;
}

void add_casts(std::vector<KernelCase>& cases) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      Arena arena;
      const auto entries = copied(arena, from, to);
      cases.push_back({fmt::format("cast {} to {}, scaled", name_of(from), name_of(to)), arena,
                       [=](Stream& stream, std::byte* base) {
                         cast_pack(stream, runs_of<CastRun>(entries, base, from, to), 1.0F / 3);
                       }});
    }
  }
  for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
    Arena arena;
    const auto entries = copied(arena, DType::kFloat32, to);
    cases.push_back({fmt::format("accumulate float32 into {}", name_of(to)), arena,
                     [=](Stream& stream, std::byte* base) {
                       accumulate(stream,
                                  runs_of<AccumulateRun>(entries, base, DType::kFloat32, to), 0.3F);
                     }});
  }
}

std::vector<Entry> updated(Arena& arena) {
  std::vector<Entry> entries;
  for (size_t i = 0; i < kNumels.size(); ++i) {
    const int64_t numel = kNumels[i], at = static_cast<int64_t>(i % 4) * 4;
    entries.push_back(
        {.numel = numel,
         .source = arena.floats(numel, at),
         .other = arena.floats(numel, at, /*positive=*/false, 0.1F),
         .third = arena.floats(numel, 4, /*positive=*/true, 0.01F),
         .narrow = arena.take(numel * 2, 2),
         .step = arena.value(StepCount{static_cast<int64_t>(i) + 1, 1.25, 0.5, 0.75})});
  }
  return entries;
}

UpdateSegment segment_of(const Entry& each, std::byte* base, size_t i) {
  UpdateSegment segment;
  segment.param = operand<float>(base, each.source);
  segment.grad = operand<const float>(base, each.other);
  segment.low_precision_copy = i % 3 == 0 ? nullptr : base + each.narrow;
  segment.low_precision_dtype = i % 3 == 1 ? DType::kBFloat16 : DType::kFloat16;
  segment.numel = each.numel;
  segment.lr = 1e-3 * static_cast<double>(i + 1);
  segment.weight_decay = i % 2 == 0 ? 0.1 : 0.0;
  segment.step = operand<const StepCount>(base, each.step);
  return segment;
}

void add_optimizers(std::vector<KernelCase>& cases) {
  Arena arena;
  const auto entries = updated(arena);
  std::vector<int64_t> firsts;
  for (const int64_t numel : kNumels) firsts.push_back(arena.floats(numel, 8));
  const int64_t scale = arena.value(0.7F);
  struct Updates {
    std::string_view name;
    UpdateRule rule;
    int moments;
  };
  for (const Updates& each : {Updates{"adamw", AdamW{}, 2},
                              {"radam", RAdam{}, 2},
                              {"radam, decoupled", RAdam{.decoupled_weight_decay = true}, 2},
                              {"lion", Lion{}, 1},
                              {"lamb", Lamb{}, 2},
                              {"average", Average{}, 0},
                              {"sgd, momentum", Sgd{.momentum = 0.9}, 1},
                              {"sgd, nesterov", Sgd{.momentum = 0.9, .nesterov = true}, 1}}) {
    cases.push_back({fmt::format("{}, with copies, decay and clipping", each.name), arena,
                     [=](Stream& stream, std::byte* base) {
                       std::vector<UpdateSegment> segments;
                       for (size_t i = 0; i < entries.size(); ++i) {
                         auto segment = segment_of(entries[i], base, i);
                         // The last moment is a second moment, which is not negative.
                         segment.moments[0] =
                             operand<float>(base, each.moments == 2 ? firsts[i] : entries[i].third);
                         segment.moments[1] = operand<float>(base, entries[i].third);
                         segments.push_back(segment);
                       }
                       update(stream, segments, each.rule,
                              {.grad_scale = operand<const float>(base, scale)});
                     }});
  }
  std::vector<std::array<int64_t, 4>> blocks;  // codes and absmax of both moments
  for (const int64_t numel : kNumels) {
    const int64_t count = numel / kQuantizedBlock + 1;
    blocks.push_back({arena.random_bytes(numel, 0), arena.floats(count, 0, /*positive=*/true),
                      arena.random_bytes(numel, 0), arena.floats(count, 0, /*positive=*/true)});
  }
  cases.push_back({"adamw with quantized moments", arena, [=](Stream& stream, std::byte* base) {
                     std::vector<BlockSegment> segments;
                     for (size_t i = 0; i < entries.size(); ++i) {
                       const auto moment = [&](size_t at) {
                         return QuantizedMoment{operand<uint8_t>(base, blocks[i][at]),
                                                operand<float>(base, blocks[i][at + 1])};
                       };
                       segments.push_back({segment_of(entries[i], base, i), moment(0), moment(2)});
                     }
                     update_blocks(stream, segments, AdamW{},
                                   {.grad_scale = operand<const float>(base, scale)});
                   }});
  cases.push_back({"steps counted", arena, [=](Stream& stream, std::byte* base) {
                     std::vector<StepCount*> counters;
                     for (const Entry& each : entries) {
                       counters.push_back(operand<StepCount>(base, each.step));
                     }
                     count_steps(stream, counters, {.beta1 = 0.9, .beta2 = 0.999},
                                 /*found_inf=*/nullptr);
                   }});
}

void add_norms(std::vector<KernelCase>& cases) {
  for (const auto& [type, name] : {std::pair{NormType::kOne, "1"}, std::pair{NormType::kTwo, "2"},
                                   std::pair{NormType::kInf, "inf"}}) {
    Arena arena;
    const auto entries = copied(arena, DType::kFloat32, DType::kFloat32);
    const int64_t norm = arena.value(GradNorm{}), first = arena.value(0.0);
    const auto scratch = std::make_shared<std::vector<double>>();
    cases.push_back(
        {fmt::format("norm {}", name), arena, [=, type = type](Stream& stream, std::byte* base) {
           std::vector<GradSegment> segments;
           int64_t position = 0;
           for (const Entry& each : entries) {
             segments.push_back({operand<const float>(base, each.source), each.numel, position});
             position += each.numel + 3;
           }
           scratch->resize(static_cast<size_t>(norm_scratch_bytes(stream, segments)) / 8);
           grad_norm(stream, segments, type,
                     {.norm = operand<GradNorm>(base, norm),
                      .first_non_finite = operand<double>(base, first),
                      .scratch = scratch->data()});
         }});
  }
}

void add_fills(std::vector<KernelCase>& cases) {
  Arena arena;
  const auto entries = copied(arena, DType::kFloat32, DType::kBFloat16);
  cases.push_back({"fills", arena, [=](Stream& stream, std::byte* base) {
                     std::vector<FillRun> zeros, nans;
                     for (const Entry& each : entries) {
                       zeros.push_back({base + each.source, each.numel, DType::kFloat32});
                       nans.push_back({base + each.other, each.numel, DType::kBFloat16});
                     }
                     fill_zero(stream, zeros);
                     fill_nan(stream, nans);
                   }});
}

void add_digests(std::vector<KernelCase>& cases) {
  Arena arena;
  std::vector<Entry> entries;
  for (const int64_t numel : kNumels) {
    entries.push_back({.numel = numel, .source = arena.random_bytes(numel * 8, 8)});
  }
  const int64_t digests = arena.take(static_cast<int64_t>(kNumels.size()) * 8);
  const auto parts = std::make_shared<std::vector<uint64_t>>(kNumels.size() * kDigestParts);
  cases.push_back({"digests", arena, [=](Stream& stream, std::byte* base) {
                     std::vector<DigestRun> runs;
                     for (size_t i = 0; i < entries.size(); ++i) {
                       runs.push_back({base + entries[i].source, entries[i].numel * 8,
                                       operand<uint64_t>(base, digests) + i,
                                       parts->data() + i * kDigestParts});
                     }
                     digest(stream, runs);
                   }});
}

void add_reductions(std::vector<KernelCase>& cases) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    for (const auto& [op, name] :
         {std::pair{ReduceOp::kSum, "sum"}, std::pair{ReduceOp::kAvg, "mean"},
          std::pair{ReduceOp::kMax, "max"}}) {
      Arena arena;
      std::vector<Entry> entries;
      for (const int64_t numel : kNumels) {
        entries.push_back({.numel = numel,
                           .source = elements(arena, type, numel, 0),
                           .other = elements(arena, type, numel, 1),
                           .third = elements(arena, type, numel, 0),
                           .narrow = arena.take(numel * size_of(type))});
      }
      cases.push_back(
          {fmt::format("reduce of three ranks, {} of {}", name, name_of(type)), arena,
           [=, op = op](Stream& stream, std::byte* base) {
             std::vector<std::array<const void*, 3>> sources;
             for (const Entry& each : entries) {
               sources.push_back({base + each.source, base + each.other, base + each.third});
             }
             std::vector<ReduceRun> runs;
             for (size_t i = 0; i < entries.size(); ++i) {
               runs.push_back({sources[i], base + entries[i].narrow, entries[i].numel, type});
             }
             reduce(stream, runs, op);
           }});
    }
  }
}

}  // namespace

std::vector<KernelCase> kernel_cases() {
  std::vector<KernelCase> cases;
  add_casts(cases);
  add_optimizers(cases);
  add_norms(cases);
  add_fills(cases);
  add_digests(cases);
  add_reductions(cases);
  return cases;
}

}  // namespace fsdp::test

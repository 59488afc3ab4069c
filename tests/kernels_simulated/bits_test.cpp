// Checks that GPU kernels compute the same bits as the CPU. Operands have every distance from a
// boundary, tables have one or many entries, and blocks and warps run in any order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/accumulate.h"
#include "kernels/cast_pack.h"
#include "kernels/count_steps.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/grad_norm.h"
#include "kernels/reduce.h"
#include "kernels/support/elements.h"
#include "kernels_simulated/support/same_bits.h"

namespace fsdp::kernels {
namespace {

using test::Arena;
using test::check_same_bits;
using test::for_each_size;
using test::in_tables;

// The number of entries of a table that needs several launches. Only one dtype of each kernel uses
// such a table, because the interpreter needs a second for it: each thread searches for its
// segment.
constexpr int kMany = 600;

struct Copy {
  int64_t source, destination, numel;
};

// Returns copies whose source elements have `from` bytes and whose destination elements have `to`
// bytes.
std::vector<Copy> copies_of(Arena& arena, int64_t from, int64_t to, bool many, bool finite) {
  std::vector<Copy> copies;
  const auto add = [&](int64_t numel, int64_t at, int64_t other) {
    const int64_t source = finite && from == 4 ? arena.floats(numel, at * from)
                                               : arena.random_bytes(numel * from, at * from);
    const int64_t destination = finite && to == 4 ? arena.floats(numel, other * to)
                                                  : arena.random_bytes(numel * to, other * to);
    // A sum of two NaNs may be either of them, so the data contains no NaN.
    if (finite && to == 2) arena.clear_high_bits(destination, numel, to);
    copies.push_back({source, destination, numel});
  };
  if (many) {
    for (int i = 0; i < kMany; ++i) add(i * 7 % 97, i % 3, i / 2 % 3);
  } else {
    for_each_size(std::max(from, to), add);
  }
  return copies;
}

template <class Run>
std::vector<Run> runs_of(const std::vector<Copy>& copies, std::byte* base, DType from, DType to) {
  std::vector<Run> runs;
  for (const Copy& each : copies) {
    runs.push_back({.source = base + each.source,
                    .destination = base + each.destination,
                    .numel = each.numel,
                    .source_dtype = from,
                    .destination_dtype = to});
  }
  return runs;
}

TEST_CASE("casts of every pair of dtypes, NaNs included, and copies of every width") {
  for (const bool many : {false, true}) {
    for (const DType from : test::kElementTypes) {
      for (const DType to : test::kElementTypes) {
        CAPTURE(name_of(from));
        CAPTURE(name_of(to));
        if (many && (from != DType::kFloat32 || to != DType::kBFloat16)) continue;
        Arena arena;
        const auto copies = copies_of(arena, size_of(from), size_of(to), many, false);
        for (const float scale : {1.0F, 1.0F / 3}) {
          check_same_bits(arena, [&](Stream& stream, std::byte* base) {
            in_tables(runs_of<CastRun>(copies, base, from, to),
                      [&](auto table) { cast_pack(stream, table, scale); });
          });
        }
      }
    }
    for (const DType dtype : {DType::kUInt8, DType::kInt64}) {
      if (many) continue;
      CAPTURE(name_of(dtype));
      Arena arena;
      const auto copies = copies_of(arena, size_of(dtype), size_of(dtype), many, false);
      check_same_bits(arena, [&](Stream& stream, std::byte* base) {
        in_tables(runs_of<CastRun>(copies, base, dtype, dtype),
                  [&](auto table) { cast_pack(stream, table); });
      });
    }
  }
}

TEST_CASE("sums, and casts for the first of several") {
  for (const bool many : {false, true}) {
    for (const bool overwrite : {false, true}) {
      for (const DType to : {DType::kFloat32, DType::kBFloat16}) {
        if (many && (overwrite || to != DType::kBFloat16)) continue;
        CAPTURE(name_of(to));
        Arena arena;
        const auto copies = copies_of(arena, 4, size_of(to), many, /*finite=*/true);
        check_same_bits(arena, [&](Stream& stream, std::byte* base) {
          auto runs = runs_of<AccumulateRun>(copies, base, DType::kFloat32, to);
          for (AccumulateRun& run : runs) run.overwrite = overwrite;
          in_tables(runs, [&](auto table) { accumulate(stream, table, 0.3F); });
        });
      }
    }
  }
}

TEST_CASE("fills of every width, and digests") {
  for (const bool many : {false, true}) {
    for (const DType dtype : {DType::kUInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
      if (many && dtype != DType::kFloat32) continue;
      CAPTURE(name_of(dtype));
      Arena arena;
      const auto copies = copies_of(arena, size_of(dtype), size_of(dtype), many, false);
      check_same_bits(arena, [&](Stream& stream, std::byte* base) {
        std::vector<FillRun> zeros, nans;
        for (const Copy& each : copies) {
          zeros.push_back({base + each.source, each.numel, dtype});
          nans.push_back({base + each.destination, each.numel, dtype});
        }
        in_tables(zeros, [&](auto table) { fill_zero(stream, table); });
        if (is_floating(dtype)) in_tables(nans, [&](auto table) { fill_nan(stream, table); });
      });
    }
    Arena arena;
    const auto copies = copies_of(arena, 8, 8, many, false);
    std::vector<uint64_t> parts(copies.size() * kDigestParts);
    check_same_bits(arena, [&](Stream& stream, std::byte* base) {
      std::vector<DigestRun> runs;
      for (const Copy& each : copies) {
        if (each.numel == 0) continue;
        runs.push_back({base + each.source, each.numel * 8,
                        reinterpret_cast<uint64_t*>(base + each.destination),
                        parts.data() + runs.size() * kDigestParts});
      }
      in_tables(runs, [&](auto table) { digest(stream, table); });
    });
  }
}

// Compares the norms. `bad_at` is the offset of an element that is set to NaN. If it is negative,
// there is none.
void check_norm(Arena& arena, const std::vector<Copy>& copies, NormType type, int64_t bad_at) {
  const int64_t norm = arena.value(GradNorm{}), first = arena.value(0.0);
  std::vector<double> scratch;
  check_same_bits(arena, [&](Stream& stream, std::byte* base) {
    std::vector<GradSegment> segments;
    int64_t position = 0;
    for (const Copy& each : copies) {
      segments.push_back(
          {reinterpret_cast<const float*>(base + each.source), each.numel, position});
      position += each.numel + 3;
    }
    if (bad_at >= 0) std::memset(base + bad_at, 0xff, 4);
    scratch.resize(static_cast<size_t>(norm_scratch_bytes(stream, segments)) / 8);
    grad_norm(stream, segments, type,
              {.norm = reinterpret_cast<GradNorm*>(base + norm),
               .first_non_finite = reinterpret_cast<double*>(base + first),
               .scratch = scratch.data()});
  });
}

TEST_CASE("norms over many segments, with one that is not finite and without") {
  for (const NormType type : {NormType::kOne, NormType::kTwo, NormType::kInf}) {
    for (const bool many : {false, true}) {
      for (const bool bad : {false, true}) {
        if (many && type != NormType::kTwo) continue;
        Arena arena;
        const auto copies = copies_of(arena, 4, 4, many, true);
        check_norm(arena, copies, type, bad ? copies[copies.size() / 2].source : -1);
      }
    }
  }
}

// A launch of the tree combines 2,048 blocks of 1,024 elements. With one element more, a second
// launch combines its results.
TEST_CASE("norms of 2,097,152 elements and more") {
  constexpr int64_t kOneLaunch = int64_t{2048} * 1024;
  for (const int64_t numel : {kOneLaunch, kOneLaunch + 1, 3 * kOneLaunch + 77}) {
    CAPTURE(numel);
    for (const bool bad : {false, true}) {
      if (bad && numel != kOneLaunch + 1) continue;
      Arena arena;
      const int64_t source = arena.floats(numel, 0);
      check_norm(arena, {{.source = source, .destination = 0, .numel = numel}}, NormType::kTwo,
                 bad ? source + (numel - 1) * 4 : -1);
    }
  }
}

TEST_CASE("reductions of every dtype and operation, over three ranks") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                            DType::kInt64, DType::kInt32, DType::kUInt8}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      if (op == ReduceOp::kAvg && !is_floating(dtype)) continue;
      CAPTURE(name_of(dtype));
      CAPTURE(name_of(op));
      for (const bool many : {false, true}) {
        if (many && (op != ReduceOp::kSum || dtype != DType::kFloat32)) continue;
        Arena arena;
        const int64_t size = size_of(dtype);
        struct Reduced {
          int64_t sources[3], out, numel;
        };
        std::vector<Reduced> reduced;
        const auto add = [&](int64_t numel, int64_t at, int64_t other) {
          Reduced run{.sources = {}, .out = 0, .numel = numel};
          for (int64_t& source : run.sources) {
            source = arena.random_bytes(numel * size, at * size);
            // A sum of two NaNs may be either of them. So NaN is excluded: no exponent has all bits
            // set.
            if (is_floating(dtype)) arena.clear_high_bits(source, numel, size);
          }
          run.out = other == at ? run.sources[1] : arena.take(numel * size, other * size);
          reduced.push_back(run);
        };
        if (many) {
          for (int i = 0; i < kMany; ++i) add(i * 7 % 97, i % 2, i / 2 % 2);
        } else {
          for_each_size(size, add);
        }
        check_same_bits(arena, [&](Stream& stream, std::byte* base) {
          std::vector<std::vector<const void*>> sources;
          std::vector<ReduceRun> runs;
          for (const Reduced& each : reduced) {
            sources.push_back({});
            for (const int64_t source : each.sources) sources.back().push_back(base + source);
          }
          for (size_t i = 0; i < reduced.size(); ++i) {
            runs.push_back({sources[i], base + reduced[i].out, reduced[i].numel, dtype});
          }
          in_tables(runs, [&](auto table) { reduce(stream, table, op); });
        });
      }
    }
  }
}

}  // namespace
}  // namespace fsdp::kernels

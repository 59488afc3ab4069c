#include <doctest/doctest.h>
#include <fsdp/sampler.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/bytes.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Samples = std::vector<int64_t>;

struct Epoch {
  Samples counted;                        // over all ranks, in the order of micro-batches and ranks
  std::vector<Samples> global_batches;    // the counted samples of each global batch
  std::vector<double> weight_of_samples;  // sum of weight / samples run, by sample
};

// Returns the most samples that a rank runs in a micro-batch.
int64_t most_of_rank(const SamplerOptions& options) {
  if (options.global_batch_size == 0) return options.batch_size_per_rank;
  return divide_up(divide_up(options.global_batch_size, options.accumulation_steps),
                   options.world_size);
}

Epoch run_epoch(SamplerOptions options, int64_t epoch) {
  Epoch result;
  result.weight_of_samples.assign(options.sample_count, 0.0);
  const BatchSampler plan(options);
  for (int64_t b = 0; b < plan.batches_per_epoch(); ++b) {
    std::vector<GlobalBatch> ranks;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
      ranks.push_back(BatchSampler(options).batch(epoch, b));
      REQUIRE(ranks.back().micro_batches.size() == ranks[0].micro_batches.size());
      CHECK(ranks.back().sample_count == ranks[0].sample_count);
    }
    Samples counted;
    for (size_t m = 0; m < ranks[0].micro_batches.size(); ++m) {
      for (const GlobalBatch& rank : ranks) {
        const MicroBatch& micro = rank.micro_batches[m];
        REQUIRE(!micro.samples.empty());
        CHECK(static_cast<int64_t>(micro.samples.size()) == std::max<int64_t>(micro.count, 1));
        CHECK(micro.count <= most_of_rank(options));
        counted.insert(counted.end(), micro.samples.begin(), micro.samples.begin() + micro.count);
        for (const int64_t sample : micro.samples) {
          result.weight_of_samples[sample] += micro.weight * double(rank.sample_count) /
                                              double(micro.samples.size() * ranks.size());
        }
      }
    }
    CHECK(static_cast<int64_t>(counted.size()) == ranks[0].sample_count);
    result.counted.insert(result.counted.end(), counted.begin(), counted.end());
    result.global_batches.push_back(std::move(counted));
  }
  return result;
}

Samples sorted(Samples samples) {
  std::sort(samples.begin(), samples.end());
  return samples;
}

Samples count_from_zero(int64_t count) {
  Samples samples(count);
  std::iota(samples.begin(), samples.end(), 0);
  return samples;
}

TEST_CASE(
    "each sample is trained on exactly once an epoch and counts equally, whatever the world") {
  for (const int64_t samples : {1, 2, 7, 8, 97, 1021}) {
    for (const int64_t world : {1, 2, 3, 5, 8}) {
      for (const int64_t steps : {1, 3}) {
        CAPTURE(samples);
        CAPTURE(world);
        CAPTURE(steps);
        const Epoch epoch = run_epoch({.sample_count = samples,
                                       .world_size = world,
                                       .batch_size_per_rank = 4,
                                       .accumulation_steps = steps},
                                      2);
        CHECK(sorted(epoch.counted) == count_from_zero(samples));
        for (const double weight : epoch.weight_of_samples) {
          CHECK(weight == doctest::Approx(1.0).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("global batches do not depend on how ranks share them") {
  const Epoch one = run_epoch({.sample_count = 1021, .batch_size_per_rank = 8}, 3);
  for (const SamplerOptions& options :
       {SamplerOptions{.sample_count = 1021, .world_size = 2, .batch_size_per_rank = 4},
        SamplerOptions{.sample_count = 1021, .world_size = 4, .batch_size_per_rank = 2},
        SamplerOptions{.sample_count = 1021,
        .world_size = 2,
        .batch_size_per_rank = 2,
        .accumulation_steps = 2}}) {
    CHECK(run_epoch(options, 3).global_batches == one.global_batches);
  }
}

TEST_CASE("a global batch size is exact on any number of ranks and micro-batches") {
  for (const int64_t size : {1, 5, 8, 13}) {
    const Epoch one = run_epoch({.sample_count = 97, .global_batch_size = size}, 1);
    CHECK(sorted(one.counted) == count_from_zero(97));
    for (const int64_t world : {1, 2, 3, 4, 8, 17}) {
      for (const int64_t steps : {1, 2, 5}) {
        if (steps > size) continue;
        CAPTURE(size);
        CAPTURE(world);
        CAPTURE(steps);
        const Epoch epoch = run_epoch({.sample_count = 97,
                                       .world_size = world,
                                       .accumulation_steps = steps,
                                       .global_batch_size = size},
                                      1);
        CHECK(epoch.global_batches == one.global_batches);
        for (size_t b = 0; b + 1 < epoch.global_batches.size(); ++b) {
          CHECK(static_cast<int64_t>(epoch.global_batches[b].size()) == size);
        }
        for (const double weight : epoch.weight_of_samples) {
          CHECK(weight == doctest::Approx(1.0).epsilon(1e-12));
        }
      }
    }
  }
}

TEST_CASE("a global batch size is cut into micro-batches and then over ranks") {
  SamplerOptions options{.sample_count = 20,
                         .world_size = 3,
                         .accumulation_steps = 3,
                         .global_batch_size = 10,
                         .shuffle = false};
  // Micro-batches of 4, 4 and 2 samples.
  const std::vector<std::vector<Samples>> run = {
      {{10, 11}, {14, 15}, {18}}, {{12}, {16}, {19}}, {{13}, {17}, {18}}};
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    CAPTURE(options.rank);
    const GlobalBatch batch = BatchSampler(options).batch(0, 1);
    CHECK(batch.sample_count == 10);
    REQUIRE(batch.micro_batches.size() == 3);
    for (size_t m = 0; m < 3; ++m) CHECK(batch.micro_batches[m].samples == run[options.rank][m]);
    CHECK(batch.micro_batches[2].weight == (options.rank < 2 ? 3.0 / 10.0 : 0.0));
  }
}

TEST_CASE("a global batch size accepts the batch size per rank that agrees with it") {
  const BatchSampler both({.sample_count = 100,
                           .world_size = 3,
                           .batch_size_per_rank = 4,
                           .accumulation_steps = 2,
                           .global_batch_size = 24});
  CHECK(both.batch(0, 0).sample_count == 24);
  CHECK(both.options().batch_size_per_rank == 4);
}

TEST_CASE("without shuffling the order is that of the file") {
  const Epoch epoch = run_epoch(
      {.sample_count = 21, .world_size = 2, .batch_size_per_rank = 4, .shuffle = false}, 5);
  CHECK(epoch.counted == count_from_zero(21));
}

TEST_CASE("drop_last leaves out what does not fill a micro-batch on every rank") {
  const SamplerOptions options{.sample_count = 1021,
                               .world_size = 2,
                               .batch_size_per_rank = 4,
                               .shuffle = false,
                               .drop_last = true};
  const BatchSampler sampler(options);
  CHECK(sampler.batches_per_epoch() == 127);
  CHECK(sampler.samples_per_epoch() == 1016);
  CHECK(sampler.batch(0, 126).micro_batches[0].count == 4);
  CHECK(run_epoch(options, 0).counted == count_from_zero(1016));
  // With accumulation, 127 micro-batches form 42 batches of three micro-batches and one batch of
  // one.
  SamplerOptions accumulating = options;
  accumulating.accumulation_steps = 3;
  const BatchSampler accumulated(accumulating);
  CHECK(accumulated.batches_per_epoch() == 43);
  CHECK(accumulated.batch(0, 42).micro_batches.size() == 1);
  CHECK(accumulated.batch(0, 42).micro_batches[0].weight == 1.0);
}

TEST_CASE("drop_last with a global batch size leaves out the same samples on any ranks") {
  for (const int64_t world : {1, 2, 3, 5, 8}) {
    for (const int64_t steps : {1, 2, 3}) {
      const SamplerOptions options{.sample_count = 97,
                                   .world_size = world,
                                   .accumulation_steps = steps,
                                   .global_batch_size = 10,
                                   .shuffle = false,
                                   .drop_last = true};
      CHECK(BatchSampler(options).batches_per_epoch() == 9);
      CHECK(BatchSampler(options).samples_per_epoch() == 90);
      CHECK(sorted(run_epoch(options, 0).counted) == count_from_zero(90));
    }
  }
}

TEST_CASE(
    "a ragged last batch is shared out evenly, and a rank without a sample runs at weight 0") {
  SamplerOptions options{
      .sample_count = 10, .world_size = 4, .batch_size_per_rank = 2, .shuffle = false};
  const std::vector<int64_t> counts = {1, 1, 0, 0};
  const std::vector<Samples> run = {{8}, {9}, {8}, {8}};
  for (options.rank = 0; options.rank < 4; ++options.rank) {
    const GlobalBatch batch = BatchSampler(options).batch(0, 1);
    CHECK(batch.sample_count == 2);
    CHECK(batch.micro_batches[0].count == counts[options.rank]);
    CHECK(batch.micro_batches[0].samples == run[options.rank]);
    CHECK(batch.micro_batches[0].weight == 2.0 * double(counts[options.rank]));
  }
}

TEST_CASE("full batches weigh one over the number of micro-batches") {
  const BatchSampler sampler({.sample_count = 96,
                              .world_size = 3,
                              .rank = 1,
                              .batch_size_per_rank = 4,
                              .accumulation_steps = 4});
  for (const MicroBatch& micro : sampler.batch(0, 1).micro_batches) CHECK(micro.weight == 0.25);
}

TEST_CASE("the order depends on seed and epoch, and all places are about equally likely") {
  const BatchSampler sampler({.sample_count = 97});
  const BatchSampler other({.sample_count = 97, .seed = 43});
  Samples first, second, reseeded;
  for (int64_t p = 0; p < 97; ++p) {
    first.push_back(sampler.sample_at(0, p));
    second.push_back(sampler.sample_at(1, p));
    reseeded.push_back(other.sample_at(0, p));
  }
  CHECK(first != second);
  CHECK(first != reseeded);
  // Each of the 5 samples is expected 4,000 times at each position of 20,000 epochs. The standard
  // deviation is 57.
  const BatchSampler five({.sample_count = 5});
  std::array<std::array<int, 5>, 5> seen{};
  for (int64_t epoch = 0; epoch < 20000; ++epoch) {
    for (int64_t p = 0; p < 5; ++p) ++seen[p][five.sample_at(epoch, p)];
  }
  for (const auto& row : seen) {
    for (const int count : row) CHECK(std::abs(count - 4000) < 300);
  }
}

TEST_CASE("options that make no sense are refused") {
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 0}),
                       "sample_count is less than 1: there is no sample to train on",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 5, .world_size = 2, .rank = 2}),
                       "rank is 2, expected 0 or more and less than world_size 2", InvalidArgument);
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 5, .batch_size_per_rank = 0}),
                       "batch_size_per_rank is 0 and accumulation_steps is 1, expected 1 or more",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 15, .world_size = 2, .drop_last = true}),
                       "15 samples do not fill a batch of 8 samples on each of 2 ranks; hint: use "
                       "a smaller batch_size_per_rank or drop_last = false",
                       InvalidArgument);
  CHECK_THROWS_AS(BatchSampler({.sample_count = 5}).batch(0, 1), InvalidArgument);
  constexpr int64_t kLarge = int64_t{1} << 40;
  for (const int64_t batch : {kLarge, int64_t{1} << 24}) {  // batch * kLarge is 0 in 64 bits
    CHECK_THROWS_AS(
        BatchSampler(
            {.sample_count = 5, .batch_size_per_rank = batch, .accumulation_steps = kLarge}),
        InvalidArgument);
  }
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 5,
                                     .world_size = 3,
                                     .batch_size_per_rank = int64_t{1} << 21,
                                     .accumulation_steps = kLarge}),
                       "a batch of 2097152 on each of 3 ranks, 1099511627776 times a step, is more "
                       "than 2^62 samples",
                       InvalidArgument);
  const BatchSampler all({.sample_count = 5,
                          .world_size = 4,
                          .batch_size_per_rank = int64_t{1} << 20,
                          .accumulation_steps = kLarge});
  CHECK(all.batches_per_epoch() == 1);
  CHECK(all.batch(0, 0).sample_count == 5);
}

TEST_CASE("a global batch size that makes no sense is refused") {
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 5, .global_batch_size = -1}),
                       "global_batch_size -1 is less than 0", InvalidArgument);
  CHECK_THROWS_WITH_AS(
      BatchSampler({.sample_count = 5, .global_batch_size = (int64_t{1} << 62) + 1}),
      "global_batch_size 4611686018427387905 is more than 2^62", InvalidArgument);
  CHECK_THROWS_WITH_AS(
      BatchSampler({.sample_count = 5, .accumulation_steps = 4, .global_batch_size = 3}),
      "global_batch_size 3 is less than accumulation_steps 4; hint: a micro-batch needs at least "
      "one sample: use fewer accumulation_steps",
      InvalidArgument);
  CHECK_THROWS_WITH_AS(BatchSampler({.sample_count = 5,
                                     .world_size = 3,
                                     .batch_size_per_rank = 4,
                                     .accumulation_steps = 2,
                                     .global_batch_size = 32}),
                       "global_batch_size 32 is not batch_size_per_rank 4 * world_size 3 * "
                       "accumulation_steps 2; hint: set only one of global_batch_size and "
                       "batch_size_per_rank",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(
      BatchSampler({.sample_count = 15, .global_batch_size = 16, .drop_last = true}),
      "15 samples do not fill one global batch of 16; hint: use a smaller global_batch_size or "
      "drop_last = false",
      InvalidArgument);
  const BatchSampler largest({.sample_count = 5,
                              .world_size = int64_t{1} << 40,
                              .accumulation_steps = 3,
                              .global_batch_size = int64_t{1} << 62});
  CHECK(largest.batches_per_epoch() == 1);
  CHECK(largest.batch(0, 0).micro_batches.size() == 1);
}

}  // namespace
}  // namespace fsdp

#include <doctest/doctest.h>
#include <fsdp/sampler.h>

#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using Position = SampleCursor::Position;

// A run between two restarts: `steps` optimizer steps with these options.
struct Phase {
  SamplerOptions options;
  int64_t steps = 0;
};

// Training over phases. Each phase resumes at the position at which the last one ended.
struct Training {
  int64_t steps = 0;
  Position position;
  std::map<int64_t, std::vector<int64_t>> uses;  // by epoch: how often each sample was used
};

// Adds the counted samples of one step, over all ranks, to `training`, and checks the step's
// weights.
void run_step(const std::vector<SampleCursor>& ranks, Training& training) {
  const Position before = ranks[0].position(training.steps);
  std::vector<int64_t>& uses = training.uses[before.epoch];
  uses.resize(ranks[0].sampler().options().sample_count);
  std::vector<double> weight_of(uses.size());
  int64_t counted = 0;
  const GlobalBatch first = ranks[0].batch(training.steps);
  for (const SampleCursor& rank : ranks) {
    CHECK(rank.position(training.steps) == before);
    const GlobalBatch batch = rank.batch(training.steps);
    REQUIRE(batch.micro_batches.size() == first.micro_batches.size());
    CHECK(batch.sample_count == first.sample_count);
    for (const MicroBatch& micro : batch.micro_batches) {
      counted += micro.count;
      for (int64_t i = 0; i < micro.count; ++i) ++uses[micro.samples[i]];
      for (const int64_t sample : micro.samples) {
        weight_of[sample] += micro.weight / double(micro.samples.size() * ranks.size());
      }
    }
  }
  CHECK(counted == first.sample_count);
  // The mean over ranks of the weighted gradients is the mean over the samples of the batch.
  for (const double weight : weight_of) {
    if (weight != 0) CHECK(weight == doctest::Approx(1.0 / double(counted)).epsilon(1e-12));
  }
  CHECK(std::accumulate(weight_of.begin(), weight_of.end(), 0.0) ==
        doctest::Approx(1.0).epsilon(1e-12));
  ++training.steps;
}

Training train(const std::vector<Phase>& phases) {
  Training training;
  for (const Phase& phase : phases) {
    std::vector<SampleCursor> ranks;
    SamplerOptions options = phase.options;
    for (options.rank = 0; options.rank < options.world_size; ++options.rank) {
      ranks.emplace_back(BatchSampler(options));
      ranks.back().restart(training.steps, training.position);
      CHECK(ranks.back().position(training.steps) == training.position);
    }
    for (int64_t step = 0; step < phase.steps; ++step) run_step(ranks, training);
    training.position = ranks[0].position(training.steps);
  }
  return training;
}

// Each sample is used once in every complete epoch, and at most once in the last one.
void check_uses(const Training& training) {
  for (const auto& [epoch, uses] : training.uses) {
    CAPTURE(epoch);
    if (epoch < training.position.epoch) {
      CHECK(uses == std::vector<int64_t>(uses.size(), 1));
    } else {
      CHECK(std::accumulate(uses.begin(), uses.end(), int64_t{0}) == training.position.samples);
      for (const int64_t count : uses) CHECK(count <= 1);
    }
  }
}

const std::vector<int64_t> kWorlds = {1, 2, 4, 3, 8, 1};

TEST_CASE("each sample is used once an epoch across restarts with other numbers of ranks") {
  for (const int64_t batch : {8, 7, 3}) {
    for (const int64_t accumulation : {1, 3}) {
      // 13 batches of 7 samples are 91 samples: restarts are in the middle of an epoch, at its
      // exact end, and in the second and later epochs.
      for (const int64_t samples : {91, 97, 8}) {
        for (const int64_t steps : {1, 4, 13}) {
          CAPTURE(batch);
          CAPTURE(accumulation);
          CAPTURE(samples);
          CAPTURE(steps);
          std::vector<Phase> phases;
          for (const int64_t world : kWorlds) {
            phases.push_back({{.sample_count = samples,
                               .world_size = world,
                               .accumulation_steps = accumulation,
                               .global_batch_size = batch},
                              steps});
          }
          const Training training = train(phases);
          check_uses(training);
          // The position equals that of a run without a restart.
          const SampleCursor whole(BatchSampler(phases[0].options));
          CHECK(training.position == whole.position(training.steps));
        }
      }
    }
  }
}

TEST_CASE("each sample is used once an epoch if the batch size changes with the ranks") {
  for (const int64_t per_rank : {1, 4, 7}) {  // the batch size follows from the ranks
    std::vector<Phase> phases;
    for (const int64_t world : kWorlds) {
      phases.push_back(
          {{.sample_count = 97, .world_size = world, .batch_size_per_rank = per_rank}, 5});
    }
    check_uses(train(phases));
  }
  const std::vector<int64_t> batches = {8, 5, 13, 1, 97, 200};
  for (const int64_t steps : {1, 2, 7}) {
    std::vector<Phase> phases;
    for (size_t i = 0; i < kWorlds.size(); ++i) {
      phases.push_back(
          {{.sample_count = 97, .world_size = kWorlds[i], .global_batch_size = batches[i]}, steps});
    }
    check_uses(train(phases));
  }
}

TEST_CASE("a restarted epoch begins at its first unused sample and ends at its end") {
  const BatchSampler sampler({.sample_count = 10, .global_batch_size = 4, .shuffle = false});
  SampleCursor cursor(sampler);
  CHECK(cursor.position(0) == Position{0, 0});
  CHECK(cursor.position(2) == Position{0, 8});
  CHECK(cursor.position(3) == Position{1, 0});  // after the batch of samples 8 and 9
  CHECK(cursor.position(3'000'000'001) == Position{1'000'000'000, 4});
  cursor.restart(20, {5, 3});
  CHECK(cursor.position(20) == Position{5, 3});
  CHECK(cursor.batch(20).micro_batches[0].samples == std::vector<int64_t>{3, 4, 5, 6});
  CHECK(cursor.batch(21).micro_batches[0].samples == std::vector<int64_t>{7, 8, 9});
  CHECK(cursor.position(22) == Position{6, 0});
  CHECK(cursor.batch(22).micro_batches[0].samples == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(cursor.position(25) == Position{7, 0});
  cursor.restart(30, {5, 10});
  CHECK(cursor.position(30) == Position{6, 0});
}

TEST_CASE("batches without a restart are those of the sampler") {
  const BatchSampler sampler({.sample_count = 97,
                              .world_size = 3,
                              .rank = 1,
                              .batch_size_per_rank = 4,
                              .accumulation_steps = 2});
  const SampleCursor cursor(sampler);
  for (int64_t step = 0; step < 3 * sampler.batches_per_epoch(); ++step) {
    const GlobalBatch expected =
        sampler.batch(step / sampler.batches_per_epoch(), step % sampler.batches_per_epoch());
    const GlobalBatch batch = cursor.batch(step);
    CHECK(batch.sample_count == expected.sample_count);
    REQUIRE(batch.micro_batches.size() == expected.micro_batches.size());
    for (size_t m = 0; m < batch.micro_batches.size(); ++m) {
      CHECK(batch.micro_batches[m].samples == expected.micro_batches[m].samples);
      CHECK(batch.micro_batches[m].weight == expected.micro_batches[m].weight);
    }
  }
}

TEST_CASE("with drop_last a restarted epoch has only whole batches") {
  SampleCursor cursor(BatchSampler({.sample_count = 30,
                                    .world_size = 4,
                                    .global_batch_size = 8,
                                    .shuffle = false,
                                    .drop_last = true}));
  CHECK(cursor.position(3) == Position{1, 0});  // 24 of 30 samples
  cursor.restart(2, {0, 10});
  for (const int64_t step : {2, 3, 4, 5, 6}) CHECK(cursor.batch(step).sample_count == 8);
  CHECK(cursor.position(3) == Position{0, 18});
  CHECK(cursor.position(4) == Position{1, 0});  // after samples 10 to 25
  // Seven samples after the position do not fill a batch.
  cursor.restart(2, {4, 23});
  CHECK(cursor.position(2) == Position{5, 0});
  CHECK(cursor.batch(2).micro_batches[0].samples == std::vector<int64_t>{0, 1});

  // Without global_batch_size, whole micro-batches are kept.
  SampleCursor micro(BatchSampler({.sample_count = 30,
                                   .world_size = 2,
                                   .batch_size_per_rank = 2,
                                   .accumulation_steps = 2,
                                   .drop_last = true}));
  micro.restart(7, {1, 16});
  CHECK(micro.batch(7).sample_count == 8);
  CHECK(micro.batch(8).sample_count == 4);
  CHECK(micro.position(9) == Position{2, 0});
}

TEST_CASE("a cursor names the options that a checkpoint compares") {
  const SampleCursor cursor(BatchSampler({.sample_count = 30, .shuffle = false, .seed = 7}));
  CHECK(cursor.sampler().options().sample_count == 30);
  CHECK(cursor.sampler().options().seed == 7);
  CHECK(!cursor.sampler().options().shuffle);
  CHECK(!cursor.sampler().options().drop_last);
}

TEST_CASE("steps and positions outside a run are refused, and the cursor is unchanged") {
  SampleCursor cursor(BatchSampler({.sample_count = 30, .global_batch_size = 8}));
  CHECK_THROWS_WITH_AS(cursor.batch(-1), "step -1 is before step 0, at which this run begins",
                       InvalidArgument);
  cursor.restart(10, {1, 8});
  CHECK_THROWS_WITH_AS(cursor.position(9), "step 9 is before step 10, at which this run begins",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(cursor.batch(9), "step 9 is before step 10, at which this run begins",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(cursor.restart(-1, {}), "-1 optimizer steps are less than 0",
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(cursor.restart(0, {-2, 0}),
                       "epoch -2 is not between 0 and 4611686018427387904", InvalidArgument);
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  CHECK_THROWS_AS(cursor.restart(0, {kLargest, 30}), InvalidArgument);
  CHECK_THROWS_WITH_AS(cursor.restart(0, {2, 31}),
                       "31 used samples are not in an epoch of 30 samples; hint: resume with the "
                       "data set with which the position was saved",
                       InvalidArgument);
  CHECK_THROWS_AS(cursor.restart(0, {2, -1}), InvalidArgument);
  CHECK(cursor.position(10) == Position{1, 8});
}

}  // namespace
}  // namespace fsdp

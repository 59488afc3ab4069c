#include "fsdp/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "feed/counter_hash.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

// The number of rounds of the Feistel network. It is as high as 8, because each round mixes a
// half-word of few bits only weakly.
constexpr int kFeistelRounds = 8;
// The limit of the samples in a step. The sum of two such numbers fits into int64_t.
constexpr int64_t kMostSamples = int64_t{1} << 62;
// The last epoch at which a restart may begin. Later epochs then fit into int64_t, too.
constexpr int64_t kMostEpochs = int64_t{1} << 62;

std::optional<int64_t> checked_global_batch(const SamplerOptions& options) {
  const auto of_rank = checked_product(options.batch_size_per_rank, options.accumulation_steps);
  return of_rank ? checked_product(*of_rank, options.world_size) : std::nullopt;
}

void check_global_batch_size(const SamplerOptions& options) {
  const int64_t size = options.global_batch_size;
  if (size > kMostSamples) {
    throw InvalidArgument({.what = fmt::format("global_batch_size {} is more than 2^62", size)});
  }
  if (size < options.accumulation_steps) {
    throw InvalidArgument(
        {.what = fmt::format("global_batch_size {} is less than accumulation_steps {}", size,
                             options.accumulation_steps),
         .hint = "a micro-batch needs at least one sample: use fewer accumulation_steps"});
  }
  if (options.batch_size_per_rank == SamplerOptions{}.batch_size_per_rank) return;
  if (checked_global_batch(options) != size) {
    throw InvalidArgument(
        {.what = fmt::format("global_batch_size {} is not batch_size_per_rank {} * world_size {} * "
                             "accumulation_steps {}",
                             size, options.batch_size_per_rank, options.world_size,
                             options.accumulation_steps),
         .hint = "set only one of global_batch_size and batch_size_per_rank"});
  }
}

void check(const SamplerOptions& options) {
  const auto refuse = [](std::string what) { throw InvalidArgument({.what = std::move(what)}); };
  if (options.sample_count < 1)
    refuse("sample_count is less than 1: there is no sample to train on");
  if (options.batch_size_per_rank < 1 || options.accumulation_steps < 1) {
    refuse(fmt::format("batch_size_per_rank is {} and accumulation_steps is {}, expected 1 or more",
                       options.batch_size_per_rank, options.accumulation_steps));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    refuse(fmt::format("rank is {}, expected 0 or more and less than world_size {}", options.rank,
                       options.world_size));
  }
  if (options.global_batch_size < 0)
    refuse(fmt::format("global_batch_size {} is less than 0", options.global_batch_size));
  if (options.global_batch_size > 0) return check_global_batch_size(options);
  // The number of samples in a global batch is the largest product of these options that the
  // sampler computes. If it does not overflow, no other product does.
  const auto samples = checked_global_batch(options);
  if (!samples || *samples > kMostSamples) {
    refuse(
        fmt::format("a batch of {} on each of {} ranks, {} times a step, is more than 2^62 "
                    "samples",
                    options.batch_size_per_rank, options.world_size, options.accumulation_steps));
  }
}

// Returns the smallest number of bits for which 2^(2 · bits) is at least `count`. The result is at
// most 31, so that sample_at can pack a half-word and the number of the round into one counter.
int half_bits_of(int64_t count) {
  int bits = 1;
  while (bits < 31 && (int64_t{1} << (2 * bits)) < count) ++bits;
  return bits;
}

}  // namespace

BatchSampler::BatchSampler(const SamplerOptions& options)
    : options_(options), half_bits_(half_bits_of(options.sample_count)) {
  check(options_);
  if (options_.global_batch_size > 0) {
    global_batch_size_ = options_.global_batch_size;
    micro_batch_size_ = divide_up(global_batch_size_, options_.accumulation_steps);
  } else {
    micro_batch_size_ = options_.batch_size_per_rank * options_.world_size;
    global_batch_size_ = micro_batch_size_ * options_.accumulation_steps;
  }
  samples_per_epoch_ = end_of_epoch(0);
  if (samples_per_epoch_ == 0 && options_.global_batch_size > 0) {
    throw InvalidArgument({.what = fmt::format("{} samples do not fill one global batch of {}",
                                               options_.sample_count, global_batch_size_),
                           .hint = "use a smaller global_batch_size or drop_last = false"});
  }
  if (samples_per_epoch_ == 0) {
    throw InvalidArgument(
        {.what =
             fmt::format("{} samples do not fill a batch of {} samples on each of {} ranks",
                         options_.sample_count, options_.batch_size_per_rank, options_.world_size),
         .hint = "use a smaller batch_size_per_rank or drop_last = false"});
  }
  batches_per_epoch_ = divide_up(samples_per_epoch_, global_batch_size_);
}

GlobalBatch BatchSampler::batch(int64_t epoch, int64_t index) const {
  if (index < 0 || index >= batches_per_epoch_) {
    throw InvalidArgument({.what = fmt::format("there is no batch {}: an epoch has {} batches",
                                               index, batches_per_epoch_),
                           .hint = "pass an index from 0 to the number of batches - 1"});
  }
  return batch_from(epoch, index * global_batch_size_);
}

int64_t BatchSampler::end_of_epoch(int64_t first) const {
  if (!options_.drop_last) return options_.sample_count;
  // Only whole micro-batches are kept, so no rank has a shorter slice than the others. If the
  // option global_batch_size is set, slices may differ by one sample anyway, and the end of the
  // epoch must not depend on the number of ranks. So only whole global batches are kept.
  const int64_t whole = options_.global_batch_size > 0 ? global_batch_size_ : micro_batch_size_;
  // A global batch is a multiple of `whole`, so the result is the same for the `first` sample of
  // every later batch in the epoch.
  return options_.sample_count - (options_.sample_count - first) % whole;
}

GlobalBatch BatchSampler::batch_from(int64_t epoch, int64_t first) const {
  GlobalBatch batch{.sample_count = std::min(global_batch_size_, end_of_epoch(first) - first)};
  for (int64_t begin = 0; begin < batch.sample_count; begin += micro_batch_size_) {
    batch.micro_batches.push_back(slice(epoch, first + begin,
                                        std::min(micro_batch_size_, batch.sample_count - begin),
                                        batch.sample_count));
  }
  return batch;
}

// Divides a micro-batch evenly over the ranks. If the division has a remainder (in an incomplete
// micro-batch), each of the first ranks gets one sample more.
MicroBatch BatchSampler::slice(int64_t epoch, int64_t first, int64_t count,
                               int64_t batch_samples) const {
  const int64_t share = count / options_.world_size;
  const int64_t longer = count % options_.world_size;
  const int64_t begin = first + options_.rank * share + std::min(options_.rank, longer);
  MicroBatch micro{.count = share + (options_.rank < longer ? 1 : 0)};
  for (int64_t i = 0; i < micro.count; ++i) micro.samples.push_back(sample_at(epoch, begin + i));
  // A rank without a sample still runs one sample, with weight 0, because it must issue the same
  // collectives as the other ranks.
  if (micro.count == 0) micro.samples.push_back(sample_at(epoch, first));
  micro.weight =
      static_cast<double>(options_.world_size * micro.count) / static_cast<double>(batch_samples);
  return micro;
}

// Permutes positions by a Feistel network on the next power of four. If the result is outside the
// epoch, it passes through the network again until it is inside (cycle walking). This gives a
// permutation of the epoch (Black and Rogaway, 2002) without a stored order.
int64_t BatchSampler::sample_at(int64_t epoch, int64_t position) const {
  if (!options_.shuffle) return position;
  const CounterStream stream(options_.seed, static_cast<uint64_t>(epoch), /*index=*/0);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(position);
  // The network permutes at most 4 · sample_count values, so the average number of passes is at
  // most four.
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kFeistelRounds; ++round) {
      const uint64_t next = left ^ (stream.at((round << 32) | right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<uint64_t>(options_.sample_count));
  return static_cast<int64_t>(value);
}

SampleCursor::SampleCursor(const BatchSampler& sampler) : sampler_(sampler) {}

GlobalBatch SampleCursor::batch(int64_t step) const {
  const Position begin = position(step);
  return sampler_.batch_from(begin.epoch, begin.samples);
}

SampleCursor::Position SampleCursor::position(int64_t steps) const {
  if (steps < first_step_) {
    throw InvalidArgument(
        {.what = fmt::format("step {} is before step {}, at which this run begins", steps,
                             first_step_)});
  }
  const int64_t batch_size = sampler_.global_batch_size_;
  int64_t batches = steps - first_step_;
  // After a restart, the first epoch can have fewer batches than the others, or none.
  const int64_t rest =
      divide_up(sampler_.end_of_epoch(first_.samples) - first_.samples, batch_size);
  if (batches < rest) return {first_.epoch, first_.samples + batches * batch_size};
  batches -= rest;
  return {first_.epoch + 1 + batches / sampler_.batches_per_epoch_,
          batches % sampler_.batches_per_epoch_ * batch_size};
}

void SampleCursor::restart(int64_t steps, const Position& position) {
  if (steps < 0) {
    throw InvalidArgument({.what = fmt::format("{} optimizer steps are less than 0", steps)});
  }
  const int64_t count = sampler_.options_.sample_count;
  if (position.epoch < 0 || position.epoch > kMostEpochs) {
    throw InvalidArgument(
        {.what = fmt::format("epoch {} is not between 0 and {}", position.epoch, kMostEpochs)});
  }
  if (position.samples < 0 || position.samples > count) {
    throw InvalidArgument({.what = fmt::format("{} used samples are not in an epoch of {} samples",
                                               position.samples, count),
                           .hint = "resume with the data set with which the position was saved"});
  }
  first_step_ = steps;
  first_ = position;
}

}  // namespace fsdp

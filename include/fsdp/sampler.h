// Distributes samples to ranks, batch by batch. Each sample is used exactly once per epoch.
//
//   const fsdp::BatchSampler sampler({.sample_count = n, .world_size = mesh.world_size(),
//                                     .rank = mesh.rank(), .batch_size_per_rank = 8});
//   for (const fsdp::MicroBatch& micro : sampler.batch(epoch, step).micro_batches) {
//     (mean_loss(micro.samples) * micro.weight).backward();
//   }
//
// The order of an epoch depends only on the seed and the epoch. Each global batch is a contiguous
// section of the epoch's order. A global batch is divided into micro-batches, and a micro-batch
// into one slice per rank. Any batch can be requested at any time. A run can therefore resume at
// any batch, with any world size.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp {

struct SamplerOptions {
  int64_t sample_count = 0;
  int64_t world_size = 1;
  int64_t rank = 0;
  // If global_batch_size is set, the default 8 counts as not set. With any other value, the product
  // batch_size_per_rank * world_size * accumulation_steps must be global_batch_size.
  int64_t batch_size_per_rank = 8;
  int64_t accumulation_steps = 1;  // micro-batches per global batch
  // The samples in a global batch, on any number of ranks. A micro-batch then has
  // global_batch_size / accumulation_steps samples over all ranks, rounded up; the last one of a
  // global batch may be smaller. 0: batch_size_per_rank * world_size * accumulation_steps.
  int64_t global_batch_size = 0;
  bool shuffle = true;
  uint64_t seed = 42;
  // true: each epoch omits the last samples if they cannot fill a micro-batch on every rank. With
  // global_batch_size, each epoch omits the last samples if they cannot fill a global batch: the
  // omitted samples depend neither on the ranks nor on accumulation_steps.
  bool drop_last = false;
};

// One rank's slice of a micro-batch.
struct MicroBatch {
  // Samples that this rank runs. This list is never empty. If the rank's slice is empty, the list
  // has the first sample of the micro-batch, with weight 0, so that the rank takes part in every
  // collective.
  std::vector<int64_t> samples;
  int64_t count = 0;  // samples with a weight: samples.size() or 0
  // Factor on the mean loss over `samples`: world_size * count / (samples in the global batch). If
  // gradients are averaged over ranks and added over micro-batches, this factor gives every sample
  // of the global batch equal weight, even if slices have different sizes.
  double weight = 0.0;
};

struct GlobalBatch {
  int64_t sample_count = 0;               // over all ranks and micro-batches
  std::vector<MicroBatch> micro_batches;  // at least one; the same number on every rank
};

// A sampler that computes the samples of a batch when it is requested. It stores no list of
// samples.
class BatchSampler {
 public:
  // Errors: InvalidArgument if there is no sample, if a count is not positive, if rank is not in
  //   [0, world_size), if a step has more than 2^62 samples, if global_batch_size contradicts
  //   batch_size_per_rank or is less than accumulation_steps, or if drop_last leaves no sample.
  explicit BatchSampler(const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  int64_t batches_per_epoch() const { return batches_per_epoch_; }
  // Returns the number of samples in an epoch over all ranks: sample_count minus the samples that
  // drop_last omits.
  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  // Returns global batch number `index` of an epoch. Requires 0 <= index < batches_per_epoch().
  GlobalBatch batch(int64_t epoch, int64_t index) const;
  // Returns the sample at a position in the order of an epoch. Requires 0 <= position <
  // sample_count.
  int64_t sample_at(int64_t epoch, int64_t position) const;

 private:
  friend class SampleCursor;

  // Returns the global batch that begins at a position in the order of an epoch. It is shorter at
  // the end of the epoch. Requires 0 <= first < end_of_epoch(first).
  GlobalBatch batch_from(int64_t epoch, int64_t first) const;
  // Returns the position at which an epoch ends in which a global batch begins at position `first`.
  // With drop_last, the epoch omits the samples from this position on. Without drop_last, the
  // position is sample_count. Requires 0 <= first <= sample_count.
  int64_t end_of_epoch(int64_t first) const;
  MicroBatch slice(int64_t epoch, int64_t first, int64_t count, int64_t batch_samples) const;

  SamplerOptions options_;
  int64_t micro_batch_size_;   // over all ranks
  int64_t global_batch_size_;  // over all ranks and micro-batches
  int64_t samples_per_epoch_;
  int64_t batches_per_epoch_;
  int half_bits_;  // half of the bits of a permuted position
};

// The position of a training run in its samples. It maps each optimizer step to its global batch,
// across epochs and across restarts with other ranks or another batch size.
//
//   fsdp::SampleCursor cursor(sampler);
//   fsdp::GlobalBatch batch = cursor.batch(step);  // steps count from 0, across epochs
//
// A checkpoint stores the number of steps and position(steps). A resumed run calls restart() with
// both: batch(steps) then begins with the first sample that the epoch has not used yet. If world
// size or batch size changed, each sample is still used once in the epoch, except that drop_last
// omits the samples that cannot fill a batch of the new size after the position. The data set and
// its order must be the same: compare sample_count, seed, shuffle and drop_last of
// sampler().options().
//
// Every call takes constant time per sample that it returns. Const calls are thread-safe.
class SampleCursor {
 public:
  struct Position {
    int64_t epoch = 0;
    // The samples that all ranks together have used in this epoch: the first ones of its order.
    int64_t samples = 0;
    bool operator==(const Position&) const = default;
  };

  // Copies the sampler. Step 0 begins at position {0, 0}.
  explicit SampleCursor(const BatchSampler& sampler);

  const BatchSampler& sampler() const { return sampler_; }
  // Returns the batch of a step.
  // Errors: InvalidArgument if `step` precedes the step of the last restart.
  GlobalBatch batch(int64_t step) const;
  // Returns the position after `steps` optimizer steps, which is where batch(steps) begins. If the
  // steps used an epoch to its end, the result is the start of the next epoch.
  // Errors: as batch().
  Position position(int64_t steps) const;
  // Sets the position after `steps` optimizer steps. If the epoch has no batch left at this
  // position, batch(steps) is the first batch of the next epoch.
  // Requires: no other call runs at the same time.
  // Errors: InvalidArgument if `steps` is negative, or if the position is not in an epoch of this
  //   sampler. The cursor is then unchanged.
  void restart(int64_t steps, const Position& position);

 private:
  BatchSampler sampler_;
  int64_t first_step_ = 0;  // the step that begins at first_
  Position first_;
};

}  // namespace fsdp

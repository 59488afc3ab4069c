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
  int64_t batch_size_per_rank = 8;
  int64_t accumulation_steps = 1;  // micro-batches per global batch
  bool shuffle = true;
  uint64_t seed = 42;
  // true: each epoch omits the last samples if they cannot fill a micro-batch on every rank.
  bool drop_last = false;
};

// One rank's slice of a micro-batch.
struct MicroBatch {
  // Samples that this rank runs. This list is never empty. If the rank's slice is empty, the list
  // has the first sample of the micro-batch, with weight 0, so that the rank takes part in every
  // collective.
  std::vector<int64_t> samples;
  int64_t count = 0;  // samples with a weight: samples.size() or 0
  // Factor on the mean loss over `samples`: world_size * count / (samples in the global batch).
  // If gradients are averaged over ranks and added over micro-batches, this factor gives every
  // sample of the global batch equal weight, also if slices have different sizes.
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
  //   [0, world_size), if a step has more than 2^62 samples, or if drop_last leaves no sample.
  explicit BatchSampler(const SamplerOptions& options);

  int64_t batches_per_epoch() const { return batches_per_epoch_; }
  // Returns the number of samples in an epoch over all ranks: sample_count minus the samples that
  // drop_last omits.
  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  // Requires 0 <= index < batches_per_epoch().
  GlobalBatch batch(int64_t epoch, int64_t index) const;
  // Returns the sample at a position in the order of an epoch. Requires 0 <= position <
  // sample_count.
  int64_t sample_at(int64_t epoch, int64_t position) const;

 private:
  MicroBatch slice(int64_t epoch, int64_t first, int64_t count, int64_t batch_samples) const;

  SamplerOptions options_;
  int64_t micro_batch_size_;  // over all ranks
  int64_t samples_per_epoch_;
  int64_t batches_per_epoch_;
  int half_bits_;  // half of the bits of a permuted position
};

}  // namespace fsdp

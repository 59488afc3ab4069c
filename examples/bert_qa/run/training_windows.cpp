#include "bert_qa/run/training_windows.h"

#include <fsdp/error.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>

namespace bert_qa {

namespace {

fsdp::SamplerOptions sampler_options(const WindowSource& source, const Settings& settings) {
  return {.sample_count = source.count,
          .batch_size_per_rank = settings.train.train_batch_size,
          .accumulation_steps = settings.train.accumulation_steps,
          .shuffle = settings.data.shuffle,
          .seed = settings.seed,
          .drop_last = settings.data.drop_last};
}

fsdp::SamplerOptions of_rank(fsdp::SamplerOptions options, int rank, int world_size) {
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

// Makes a sampler. If it throws, the hint names flags of the command line.
fsdp::BatchSampler sampler_of(const fsdp::SamplerOptions& options) {
  try {
    return fsdp::BatchSampler(options);
  } catch (const fsdp::InvalidArgument& error) {
    fsdp::ErrorText text = error.text();
    if (!text.hint.empty()) {
      text.hint = "lower --per-device-train-batch-size or leave out --dataloader-drop-last";
    }
    throw fsdp::InvalidArgument(std::move(text));
  }
}

// Returns the options of a sampler with a single rank, which gets the batches of all ranks.
fsdp::SamplerOptions of_all_ranks(fsdp::SamplerOptions options, int world_size) {
  options.batch_size_per_rank *= world_size;
  return options;
}

}  // namespace

TrainingWindows::TrainingWindows(WindowSource source, const Settings& settings, int rank,
                                 int world_size)
    : source_(std::move(source)),
      settings_(settings.train),
      cursor_(sampler_of(of_rank(sampler_options(source_, settings), rank, world_size))),
      all_ranks_(fsdp::BatchSampler(of_all_ranks(sampler_options(source_, settings), world_size))) {
  set_steps(/*longer=*/0);
}

void TrainingWindows::set_steps(int64_t longer) {
  const auto by_epochs = static_cast<int64_t>(
      std::ceil(settings_.num_epochs * static_cast<double>(steps_per_epoch())));
  total_steps_ = settings_.max_steps >= 0 ? settings_.max_steps : by_epochs + longer;
  const int64_t stop = settings_.stop_after_step;
  steps_to_run_ = stop >= 0 ? std::min(stop, total_steps_) : total_steps_;
}

double TrainingWindows::epochs_after(int64_t steps) const {
  const auto [epoch, samples] = cursor_.position(steps);
  return static_cast<double>(epoch) +
         static_cast<double>(samples) / static_cast<double>(cursor_.sampler().samples_per_epoch());
}

void TrainingWindows::resume(int64_t step) {
  const fsdp::SampleCursor::Position begin = cursor_.position(step);
  all_ranks_.restart(step, begin);
  const auto next_epoch = *std::ranges::partition_point(
      std::views::iota(step + 1, step + steps_per_epoch() + 2),
      [&](int64_t later) { return cursor_.position(later).epoch == begin.epoch; });
  set_steps(next_epoch - (begin.epoch + 1) * steps_per_epoch());
}

fsdp::GlobalBatch TrainingWindows::step(int64_t step) const { return cursor_.batch(step); }

StepInput TrainingWindows::input(int64_t step) const {
  StepInput input{.slices = this->step(step)};
  const int64_t epoch = cursor_.position(step).epoch;
  // Samplers of one seed agree, so the whole micro-batch is known without communication.
  const fsdp::GlobalBatch whole = all_ranks_.batch(step);
  for (size_t i = 0; i < input.slices.micro_batches.size(); ++i) {
    int64_t longest = 0;
    const fsdp::MicroBatch& of_all = whole.micro_batches[i];
    for (int64_t sample = 0; sample < std::ssize(of_all.samples); ++sample) {
      const int64_t length = source_.length(epoch, of_all.samples[sample]);
      longest = std::max(longest, length);
      if (sample < of_all.count) input.tokens += length;  // without a filler
    }
    input.rows.push_back(source_.make_batch(epoch, input.slices.micro_batches[i].samples, longest));
  }
  return input;
}

}  // namespace bert_qa

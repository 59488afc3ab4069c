#include "training_windows.h"

#include <cmath>
#include <utility>

namespace bert_qa {

TrainingWindows::TrainingWindows(WindowSource source, const Settings& settings, int rank,
                                 int world_size)
    : source_(std::move(source)),
      sampler_({.window_count = source_.count,
                .world_size = world_size,
                .rank = rank,
                .batch_size_per_rank = settings.train.train_batch_size,
                .accumulation_steps = settings.train.accumulation_steps,
                .shuffle = settings.data.shuffle,
                .seed = settings.seed,
                .drop_last = settings.data.drop_last}) {
  const auto by_epochs = static_cast<int64_t>(
      std::ceil(settings.train.num_epochs * static_cast<double>(steps_per_epoch())));
  total_steps_ = settings.train.max_steps >= 0 ? settings.train.max_steps : by_epochs;
}

fsdp::GlobalBatch TrainingWindows::step(int64_t step) const {
  return sampler_.batch(step / steps_per_epoch(), step % steps_per_epoch());
}

fsdp::QaBatch TrainingWindows::rows(int64_t step, const fsdp::MicroBatch& micro) const {
  return source_.make_batch(step / steps_per_epoch(), micro.windows);
}

}  // namespace bert_qa

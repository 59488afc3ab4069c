#include "bert_qa/run/training_windows.h"

#include <fsdp/prefetcher.h>

#include <algorithm>

#include "support/torch_doctest.h"

using namespace bert_qa;

namespace {

// Returns a source of windows. Window w has 10 + w tokens.
WindowSource windows_of_growing_length(int64_t count) {
  return {.count = count,
          .length = [](int64_t, int64_t window) { return 10 + window; },
          .make_batch =
              [](int64_t, std::span<const int64_t> windows, int64_t length) {
                bert_qa::QaBatch batch;
                batch.resize(static_cast<int64_t>(windows.size()), length);
                return batch;
              }};
}

std::vector<int64_t> widths(int ranks, int rank, int64_t batch_size) {
  Settings settings;
  settings.train.train_batch_size = batch_size;
  settings.train.accumulation_steps = 2;
  settings.train.num_epochs = 2;
  const TrainingWindows windows(windows_of_growing_length(29), settings, rank, ranks);
  std::vector<int64_t> widths;
  for (int64_t step = 0; step < windows.total_steps(); ++step) {
    for (const bert_qa::QaBatch& rows : windows.input(step).rows) {
      widths.push_back(rows.length);
    }
  }
  return widths;
}

}  // namespace

TEST_CASE("rows are as wide on every rank of any world as on one rank alone") {
  const std::vector<int64_t> alone = widths(1, 0, 6);
  for (const int ranks : {2, 3, 6}) {
    for (int rank = 0; rank < ranks; ++rank) CHECK(widths(ranks, rank, 6 / ranks) == alone);
  }
}

TEST_CASE("steps follow from epochs or are given; an early stop keeps the schedule's length") {
  Settings settings;
  settings.train.train_batch_size = 4;
  settings.train.num_epochs = 1.5;
  const auto steps = [&] {
    const TrainingWindows windows(windows_of_growing_length(29), settings, 0, 1);
    return std::pair(windows.total_steps(), windows.steps_to_run());
  };
  CHECK(steps() == std::pair<int64_t, int64_t>(12, 12));  // an epoch has 8 steps
  settings.train.stop_after_step = 5;
  CHECK(steps() == std::pair<int64_t, int64_t>(12, 5));
  settings.train.max_steps = 3;
  CHECK(steps() == std::pair<int64_t, int64_t>(3, 3));
}

TEST_CASE("a run that resumes with other batches uses the rest of each epoch's windows once") {
  Settings settings;
  settings.train.num_epochs = 2;
  for (const bool drops : {false, true}) {
    settings.data.drop_last = drops;
    for (const auto& [before, after] : {std::pair(4, 4), {4, 6}, {6, 4}}) {
      for (const int64_t stop : {1, 4, 5, 6}) {
        CAPTURE(drops);
        CAPTURE(before);
        CAPTURE(after);
        CAPTURE(stop);
        settings.train.train_batch_size = before;
        TrainingWindows first(windows_of_growing_length(29), settings, 0, 1);
        settings.train.train_batch_size = after;
        TrainingWindows second(windows_of_growing_length(29), settings, 0, 1);
        second.cursor().restart(stop, first.cursor().position(stop));
        second.resume(stop);
        std::vector<int> uses(29);
        const auto use = [&](const TrainingWindows& windows, int64_t begin, int64_t end) {
          for (int64_t step = begin; step < end; ++step) {
            const StepInput input = windows.input(step);
            for (size_t i = 0; i < input.rows.size(); ++i) {
              const auto& samples = input.slices.micro_batches[i].samples;
              CHECK(input.rows[i].length == 10 + *std::ranges::max_element(samples));
              for (const int64_t window : samples) ++uses[window];
            }
          }
        };
        use(first, 0, stop);
        use(second, stop, second.total_steps());
        CHECK(second.epochs_after(second.total_steps()) == 2);
        CHECK(std::ranges::max(uses) == 2);
        if (!drops) CHECK(std::ranges::min(uses) == 2);
        if (before == after) CHECK(second.total_steps() == first.total_steps());
      }
    }
  }
}

TEST_CASE("batches made ahead on a thread are those of the steps, in order") {
  Settings settings;
  settings.train.train_batch_size = 3;
  settings.train.accumulation_steps = 2;
  WindowSource source = windows_of_growing_length(29);
  source.make_batch = [](int64_t, std::span<const int64_t> windows, int64_t length) {
    bert_qa::QaBatch batch;
    batch.resize(static_cast<int64_t>(windows.size()), length);
    batch.start_positions.assign(windows.begin(), windows.end());
    return batch;
  };
  const TrainingWindows windows(source, settings, 1, 2);
  fsdp::Prefetcher<StepInput> ahead(windows.total_steps(), 4,
                                    [&](int64_t step) { return windows.input(step); });
  for (int64_t step = 0; step < windows.total_steps(); ++step) {
    const StepInput input = ahead.next();
    const fsdp::GlobalBatch slices = windows.step(step);
    REQUIRE(input.slices.micro_batches.size() == slices.micro_batches.size());
    CHECK(input.slices.sample_count == slices.sample_count);
    for (size_t i = 0; i < slices.micro_batches.size(); ++i) {
      CHECK(input.slices.micro_batches[i].weight == slices.micro_batches[i].weight);
      CHECK(input.rows[i].start_positions == slices.micro_batches[i].samples);
    }
  }
}

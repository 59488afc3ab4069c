// Trains small models on thread ranks, on one simulated GPU and on the CPU, and on ranks that are
// processes, to compare bits.
#pragma once

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/run_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

struct SimulatedSession;

enum class SmallModel : uint8_t {
  kGpt,
  kBert,
  kBertMini,  // 11 M parameters, in the published shape
  // A model that rounds each number once and has no sum of unspecified order. Its bits are equal on
  // every device, also with LibTorch's own kernels.
  kRoundedOnce,
};

struct Training {
  SmallModel model = SmallModel::kGpt;
  int world = 2;
  int groups = 1;  // number of groups of ranks
  int steps = 3;
  Options options{};
};
std::string describe(const Training& training);

struct TrainingResult {
  std::vector<float> losses;  // rank 0's
  std::map<std::string, at::Tensor> parameters;
  // The number of host waits for the device from the second step on, summed over all ranks.
  int64_t host_waits = 0;
};

// Trains one rank with AdamW and clipped gradients, on data that depends only on rank and step.
// `waits` returns how often the host has waited for the device until now. Rank 0 sets the result.
void train_rank(const Training& training, const Mesh& mesh, const std::function<int64_t()>& waits,
                TrainingResult& result);
// Trains on thread ranks.
TrainingResult train_on(const Training& training, const RunRanksOptions& options,
                        const std::function<int64_t()>& waits);
// Trains on the CPU. If `sums` is true, communicators only sum, as NCCL does, so gradients are
// divided before the reduction.
TrainingResult train_on_cpu(const Training& training, bool sums = false);
// Errors: std::runtime_error with the reports of the simulated GPU.
TrainingResult train_on_gpu(const Training& training,
                            const std::shared_ptr<SimulatedSession>& session);

// Returns the first difference, or an empty string if all bits are equal.
std::string difference(const TrainingResult& one, const TrainingResult& other);

// Returns every combination of worlds 1 to 4, prefetch 0 to 2, two dtypes, all strategies, and main
// state on the device or the host. Hybrid strategies run on two groups of two ranks. Neighbours in
// the list differ in every option.
std::vector<Training> all_trainings(SmallModel model);
// Returns a subset of `all`, or of all_trainings, in which each pair of values of two options
// occurs that occurs in the whole.
std::vector<Training> covering_trainings(const std::vector<Training>& all);
std::vector<Training> covering_trainings(SmallModel model);

}  // namespace fsdp::testing

// Trains small models on thread ranks: on one simulated GPU, and on the CPU, for a comparison of
// bits.
#pragma once

#include <fsdp/options.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "simulator/torch/simulated_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

enum class SmallModel : uint8_t {
  kGpt,
  kBert,
  kBertMini,  // 11 M parameters, of the published shape
  // Rounds each number once, and adds nothing in an open order: the same bits on every device,
  // LibTorch's own kernels included.
  kRoundedOnce,
};

struct Training {
  SmallModel model = SmallModel::kGpt;
  int world = 2;
  int groups = 1;  // groups of ranks
  int steps = 3;
  Options options{};
};
std::string describe(const Training& training);

struct TrainingResult {
  std::vector<float> losses;  // rank 0's
  std::map<std::string, at::Tensor> parameters;
  // The host's waits for the device from the second step on, summed over all ranks.
  int64_t host_waits = 0;
};

// Trains with AdamW and clipped gradients, on data that depends only on rank and step. `waits`
// returns how often the host has waited for the device so far.
TrainingResult train_on(const Training& training, const RunRanksOptions& options,
                        const std::function<int64_t()>& waits);
// Trains on the CPU. `sums`: communicators only sum, as NCCL's, so gradients are divided before.
TrainingResult train_on_cpu(const Training& training, bool sums = false);
// Errors: std::runtime_error with the simulated GPU's reports.
TrainingResult train_on_gpu(const Training& training,
                            const std::shared_ptr<SimulatedSession>& session);

// Returns the first difference; empty if both have the same bits.
std::string difference(const TrainingResult& one, const TrainingResult& other);

// Returns every combination of worlds 1 to 4, prefetch 0 to 2, two dtypes, all strategies (hybrid
// ones on two groups of two), and main state on the device or the host. Neighbours differ in every
// column.
std::vector<Training> all_trainings(SmallModel model);
// Returns those that together contain each pair of values of two columns.
std::vector<Training> covering_trainings(SmallModel model);

}  // namespace fsdp::testing

// Small models trained by thread ranks: on one simulated GPU, and on the CPU, whose bits they are
// held against.
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
  // Each number is rounded once, and no sum has two orders: the same bits on every device,
  // LibTorch's own kernels included.
  kRoundedOnce,
};

struct Training {
  SmallModel model = SmallModel::kGpt;
  int world = 2;
  int groups = 1;  // of ranks
  int steps = 3;
  Options options{};
};
std::string describe(const Training& training);

struct TrainingResult {
  std::vector<float> losses;  // rank 0's
  std::map<std::string, at::Tensor> parameters;
  // From the second step on, on all ranks together: how often the host waited for the device.
  int64_t host_waits = 0;
};

// AdamW with clipped gradients, on data that depends on rank and step only. `waits`: how often the
// host has waited for the device so far.
TrainingResult train_on(const Training& training, const RunRanksOptions& options,
                        const std::function<int64_t()>& waits);
// `sums`: communicators that sum only, as NCCL's, so that gradients are divided before.
TrainingResult train_on_cpu(const Training& training, bool sums = false);
// Errors: std::runtime_error with what the simulated GPU reports.
TrainingResult train_on_gpu(const Training& training,
                            const std::shared_ptr<SimulatedSession>& session);

// Empty if both have the same bits; else the first difference.
std::string difference(const TrainingResult& one, const TrainingResult& other);

// Of worlds 1 to 4, prefetch 0 to 2, two dtypes, all strategies, those of groups on two groups of
// two, and main state on the device or the host: every combination, in an order in which neighbours
// differ in every column; and those of them that hold each pair of values of two columns.
std::vector<Training> all_trainings(SmallModel model);
std::vector<Training> covering_trainings(SmallModel model);

}  // namespace fsdp::testing

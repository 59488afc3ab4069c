// Builds LibTorch models for thread ranks, and computes the plain model's gradients for comparison.
#pragma once

#include <fsdp/engine.h>
#include <fsdp/unit.h>

#include <functional>
#include <mutex>
#include <vector>

#include "comm/mesh_parts.h"
#include "support/run_torch_ranks.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

// Returns the one mutex for all models, because they draw from the only generator of the process.
inline std::mutex& seeding_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Builds a model with a seed. The lock makes thread ranks build one after another.
template <class Make>
auto build_seeded(uint64_t seed, Make make) {
  const std::lock_guard lock(seeding_mutex());
  at::set_num_threads(1);  // also for the plain model: the number of threads changes rounding
  torch::manual_seed(seed);
  return make();
}

// Returns values that depend only on the arguments. They are the same in every run, thread and
// world.
inline at::Tensor values(std::vector<int64_t> sizes, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator, torch::kFloat);
}

// Returns the whole parameters by name.
inline std::map<std::string, at::Tensor> full_parameters(Engine& engine) {
  std::map<std::string, at::Tensor> result;
  engine.visit_full_parameters([&](std::string_view fqn, const at::Tensor& value) {
    result[std::string(fqn)] = value.clone();
  });
  return result;
}

inline std::map<std::string, at::Tensor> plain_parameters(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> result;
  for (const auto& item : module.named_parameters())
    result[item.key()] = item.value().detach().clone();
  return result;
}

inline bool bit_equal(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  if (a.numel() == 0) return true;
  // Clones both, because a caller may pass views of device memory.
  const at::Tensor left = a.clone().contiguous(), right = b.clone().contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// Computes the plain model's mean gradients over `world` ranks and stores them in `.grad`. It
// computes the gradients of each rank's loss from zero, adds them in rank order in fp32, and
// divides the sum by the number of ranks.
inline void mean_gradients(torch::nn::Module& module, int world,
                           const std::function<void(int rank)>& backward_of_rank) {
  std::vector<at::Tensor> sums;
  const std::vector<at::Tensor> parameters = module.parameters();
  for (int rank = 0; rank < world; ++rank) {
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad() = at::Tensor();
    backward_of_rank(rank);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = parameters[i].grad().defined() ? parameters[i].grad().clone()
                                                                 : torch::zeros_like(parameters[i]);
      if (rank == 0) {
        sums.push_back(gradient);
      } else {
        sums[i] += gradient;
      }
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = world > 1 ? sums[i] / world : sums[i];
  }
}

// Computes mean gradients in two levels: the mean over each group of ranks, then over the groups.
inline void mean_gradients_by_groups(torch::nn::Module& module, const MeshShape& shape,
                                     const std::function<void(int rank)>& backward_of_rank) {
  const std::vector<at::Tensor> parameters = module.parameters();
  std::vector<at::Tensor> sums;
  for (int group = 0; group < shape.replicate; ++group) {
    mean_gradients(module, shape.shard,
                   [&](int place) { backward_of_rank(group * shape.shard + place); });
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = parameters[i].grad().clone();
      if (group == 0) {
        sums.push_back(gradient);
      } else {
        sums[i] += gradient;
      }
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = shape.replicate > 1 ? sums[i] / shape.replicate : sums[i];
  }
}

}  // namespace fsdp::testing

// Rates and models for tests of planned times.
#pragma once

#include <fsdp/plan.h>

#include "models/gpt.h"
#include "support/torch_doctest.h"

namespace fsdp::testing {

inline Rates sample_rates() {
  return {.machine = "test",
          .source = "chosen",
          .copy = 1e12,
          .host_ns_per_call = 500,
          .types = {{.dtype = torch::kFloat32,
                     .products = {{16, 1e12}, {256, 2e13}},
                     .attention = 1e13}},
          .base_ns = 5000,
          .host = {.bytes = 1e11, .step_ns = 2000},
          .net = {.bytes = 4e10, .step_ns = 10000},
          .contention = 0.3};
}

// Returns sample_rates() with those for offload from a GPU.
inline Rates offload_rates() {
  Rates rates = sample_rates();
  rates.host_copy = 1e11;
  rates.transfer = 2e10;
  return rates;
}

inline Unit<gpt::Gpt> tiny_gpt() { return Unit<gpt::Gpt>(gpt::preset_config("tiny")); }

inline at::Tensor gpt_loss(Unit<gpt::Gpt>& model, int64_t batch = 2) {
  const at::Tensor ids = torch::zeros({batch, 32}, torch::kLong);
  return at::cross_entropy_loss(model(ids).flatten(0, 1), ids.flatten());
}

inline PlanRequest on_gpus(int ranks, const Options& options = {}) {
  return {.ranks = ranks, .mesh = {.device = DeviceKind::kCuda}, .options = options};
}

}  // namespace fsdp::testing

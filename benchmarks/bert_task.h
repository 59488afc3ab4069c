// What step benchmarks train a BERT on. All of it follows from formulas that
// benchmarks/peers/step.py shares, so losses are comparable.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace bert_task {

// Uniform with the standard deviation that BERT starts from; biases 0, normalisation weights 1.
// Requires: the parameters are on the CPU, in fp32.
void set_initial_values(torch::nn::Module& model);

struct Windows {
  at::Tensor ids, segments, mask, first, last;
};
// `count` windows of a rank, on the CPU.
Windows windows_of(int64_t count, int64_t tokens, int rank);
Windows to_device(const Windows& windows, at::Device device);

}  // namespace bert_task

// Makes the task of step benchmarks, which is the training of a BERT. Values follow from formulas
// that benchmarks/peers/step.py also uses, so losses can be compared.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace bert_task {

// Sets uniform values with the standard deviation of BERT's initial values. Biases are 0 and
// normalisation weights are 1. Requires: the parameters are on the CPU and in fp32.
void set_initial_values(torch::nn::Module& model);

// A batch of question windows.
struct Windows {
  at::Tensor ids, segments, mask, first, last;
};
// Returns `count` windows of a rank, on the CPU.
Windows windows_of(int64_t count, int64_t tokens, int rank);
Windows to_device(const Windows& windows, at::Device device);

}  // namespace bert_task

// Batch normalisation over the batches of all ranks.
#pragma once

#include <fsdp/mesh.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace fsdp {

// torch::nn::BatchNorm1d, 2d and 3d whose statistics in training are those of all ranks' batches
// together, so that running statistics are equal on all ranks. Input [N, C, …] of at least two
// dimensions; N may differ between ranks, and be 0. Parameters, buffers and options are
// BatchNorm's; eval() and one rank are plain BatchNorm.
//   fsdp::SyncBatchNorm norm(64, mesh);
// Ordering: forward in training is one all_reduce of 2·C + 1 fp64 values, its backward one of 2·C.
//   Both count in the host order: every rank calls the module at the same places.
// Gradients: of the input, of the sum of all ranks' losses; of weight and bias, of this rank's own
//   loss, as for every parameter: the engine reduces them.
// Errors: InvalidArgument on all ranks if they have one value per channel in all.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<1, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, Mesh mesh);
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  Mesh mesh_;
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace fsdp

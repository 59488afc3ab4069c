// Batch normalisation over the batches of all ranks.
#pragma once

#include <fsdp/mesh.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace fsdp {

// torch::nn::BatchNorm1d, 2d or 3d with statistics over the batches of all ranks, so running
// statistics are equal on all ranks. The input is [N, C, …] with at least two dimensions. N may
// differ between ranks and may be 0. Parameters, buffers and options are those of BatchNorm. In
// eval mode, and on one rank, the module behaves as BatchNorm.
//   fsdp::SyncBatchNorm norm(64, mesh);
// Ordering: a forward in training issues one all_reduce of 2·C + 1 fp64 values. Its backward issues
//   one all_reduce of 2·C values. Both collectives are part of the mesh's sequence of collectives,
//   so every rank must call the module at the same places in its program.
// Gradients: the input's gradient is the gradient of the sum of the losses of all ranks. The
//   gradients of weight and bias are gradients of this rank's loss, as for every parameter; the
//   engine reduces them.
// Errors: InvalidArgument on all ranks if all ranks together have only one value per channel.
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

// One rank whose forward writes a weight that is mapped from all ranks' memory.
//   fsdp-run -n 2 torch_rank writing HOW       HOW: clamp, or data (past the version counter)
#include <ATen/Parallel.h>
#include <fsdp/fsdp.h>
#include <fsdp/program.h>
#include <torch/nn/modules/linear.h>

#include <string_view>

#include "torch_rank.h"

namespace {

// A model with a weight of 1 MiB. On two ranks, half of it is enough to be mapped.
struct WritingImpl : torch::nn::Module {
  explicit WritingImpl(bool through_data) : layer(512, 512), through_data_(through_data) {
    register_module("layer", layer);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    fsdp::UnitScope scope(*layer, x);
    at::Tensor weight = through_data_ ? layer->weight.data() : layer->weight;
    weight.clamp_(-0.01, 0.01);
    at::Tensor out = x.sum() + layer->weight.sum();
    scope.outputs(out);
    return out;
  }
  fsdp::Unit<torch::nn::Linear> layer;
  bool through_data_;
};
TORCH_MODULE(Writing);

}  // namespace

int fsdp::testing::writing_rank(int, char** arguments) {
  at::set_num_threads(1);
  return fsdp::run_program([&](const fsdp::Mesh& mesh, fsdp::ErrorPlace&) {
    fsdp::Unit<Writing> model(std::string_view(arguments[1]) == "data");
    fsdp::Engine engine(model, mesh);
    model(torch::ones({2, 512}));
    return 0;
  });
}

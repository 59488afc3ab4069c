// Shards LibTorch's own Transformer without changing it: fsdp-run -n 2 hello_policy
#include <fsdp/fsdp.h>
#include <torch/torch.h>
namespace nn = torch::nn;

// Trains it to reverse a sequence.
int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace&) {
  nn::Transformer model(nn::TransformerOptions(32, 4, 2, 2).dim_feedforward(64).dropout(0));

  fsdp::Options options = run.engine;  // the modules that are gathered one at a time
  options.units = fsdp::by_type<nn::TransformerEncoderLayer, nn::TransformerDecoderLayer>();
  fsdp::Engine engine(model, mesh, options);
  fsdp::AdamW optimizer(engine, {.lr = 3e-3});

  torch::manual_seed(static_cast<uint64_t>(1 + mesh.rank()));  // each rank has its own sequences
  if (mesh.rank() == 0) std::puts(engine.describe().c_str());
  for (int step = 1; step <= 60; ++step) {
    const at::Tensor given = torch::randn({6, 16, 32}).to(engine.device());
    const at::Tensor places = at::linspace(-1, 1, 6, given.options()).view({6, 1, 1});
    const at::Tensor loss = engine.forward(
        [&](const at::Tensor& from) {
          const at::Tensor made = model(from + places, places.expand_as(from));
          return at::mse_loss(made, from.flip(0).to(made.scalar_type()));
        },
        given);
    loss.backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (mesh.rank() == 0) std::printf("step %d loss %.3f\n", step, loss.item<double>());
  }
  return 0;
}

int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }

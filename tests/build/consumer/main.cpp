// A program of its own on the installed package: two ranks as threads train one small model.
#include <fsdp/fsdp.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <thread>
#include <vector>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", fsdp::Unit<torch::nn::Linear>(4, 16));
    out = register_module("out", fsdp::Unit<torch::nn::Linear>(16, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x))); }

  fsdp::Unit<torch::nn::Linear> hidden{nullptr};
  fsdp::Unit<torch::nn::Linear> out{nullptr};
};
TORCH_MODULE(Net);

struct Losses {
  double first = 0;
  double last = 0;
};

Losses train(const fsdp::Mesh& mesh) {
  fsdp::BuildScope building(mesh);
  fsdp::Unit<Net> net;
  fsdp::Engine engine(net, building);
  fsdp::AdamW optimizer(engine, {.lr = 0.05});
  const torch::Tensor x = torch::linspace(-1, 1, 32).view({8, 4});
  const torch::Tensor y = x.sum(1, /*keepdim=*/true);
  Losses losses;
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor loss = torch::mse_loss(net(x), y);
    losses.last = loss.item<double>();
    if (step == 0) losses.first = losses.last;
    loss.backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  return losses;
}

}  // namespace

int main() {
  std::vector<fsdp::Mesh> meshes = fsdp::Mesh::local(2);
  std::vector<Losses> losses(meshes.size());
  std::vector<std::jthread> ranks;
  for (size_t rank = 0; rank < meshes.size(); ++rank) {
    ranks.emplace_back([&, rank] { losses[rank] = train(meshes[rank]); });
  }
  ranks.clear();
  std::printf("loss %.6f -> %.6f on %zu ranks\n", losses[0].first, losses[0].last, losses.size());
  const bool learned = losses[0].last < 0.5 * losses[0].first;
  const bool equal = losses[0].last == losses[1].last;
  return learned && equal ? 0 : 1;
}

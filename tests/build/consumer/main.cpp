// A separate program that uses the installed package. Two thread ranks train a small model on the
// samples that a sampler distributes. The program saves the model's weights to a file and loads
// them into an engine of one rank.
#include <fsdp/fsdp.h>

// fsdp's header accepts LibTorch's optimizer options, but must not include LibTorch's optimizers.
template <class Type>
concept Complete = requires {
  sizeof(Type);
};
static_assert(!Complete<torch::optim::AdamWOptions> && !Complete<torch::optim::SGDOptions>);

#include <fsdp/safetensors.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kSamples = 24;
constexpr int64_t kSteps = 20;

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

const torch::Tensor& inputs() {
  static const torch::Tensor x = torch::linspace(-1, 1, 4 * kSamples).view({kSamples, 4});
  return x;
}

torch::Tensor loss_of(fsdp::Unit<Net>& net, const std::vector<int64_t>& samples) {
  const torch::Tensor x = inputs().index_select(0, torch::tensor(samples));
  return torch::mse_loss(net(x), x.sum(1, /*keepdim=*/true));
}

Losses train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run,
             const std::filesystem::path& file) {
  fsdp::BuildScope building(mesh, run.engine);
  fsdp::Unit<Net> net;
  fsdp::Engine engine(net, building);
  fsdp::AdamW optimizer(engine, torch::optim::AdamWOptions(0.05));
  const fsdp::BatchSampler sampler({.sample_count = kSamples,
                                    .world_size = mesh.world_size(),
                                    .rank = mesh.rank(),
                                    .batch_size_per_rank = 12});
  fsdp::Prefetcher<fsdp::MicroBatch> batches(kSteps, /*depth=*/2, [&](int64_t step) {
    return sampler.batch(/*epoch=*/step, 0).micro_batches.front();
  });
  Losses losses;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const fsdp::MicroBatch batch = batches.next();
    const torch::Tensor loss = loss_of(net, batch.samples) * batch.weight;
    loss.backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    losses.last = mesh.mean(loss, "loss");
    if (step == 1) losses.first = losses.last;
  }
  fsdp::save_weights(engine, file, {.dtype = torch::kFloat64});
  return losses;
}

double loss_of_file(const std::filesystem::path& file) {
  const fsdp::Mesh mesh = fsdp::Mesh::single();
  fsdp::Unit<Net> net;
  fsdp::Engine engine(net, mesh);
  fsdp::load_weights(engine, file);
  std::vector<int64_t> all(kSamples);
  for (int64_t i = 0; i < kSamples; ++i) all[i] = i;
  fsdp::run_or_throw_on_all_ranks(mesh, "looking into the file", [&] {
    const fsdp::SafetensorsFile stored(file);
    if (stored.find("out.bias") == nullptr) throw fsdp::StateError({.what = "no out.bias"});
  });
  const torch::NoGradGuard no_grad;
  return mesh.max(loss_of(net, all));
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path file = "consumer.safetensors";
  const fsdp::RunOptions run = fsdp::RunOptions::parse(argc, argv);
  std::vector<fsdp::Mesh> meshes = fsdp::Mesh::local(2, run.mesh);
  std::vector<Losses> losses(meshes.size());
  std::vector<std::jthread> ranks;
  for (size_t rank = 0; rank < meshes.size(); ++rank) {
    ranks.emplace_back([&, rank] { losses[rank] = train(meshes[rank], run, file); });
  }
  ranks.clear();
  const double reloaded = loss_of_file(file);
  std::printf("loss %.6f -> %.6f on %zu ranks, %.6f reloaded on one\n", losses[0].first,
              losses[0].last, losses.size(), reloaded);
  const bool learned = losses[0].last < 0.5 * losses[0].first;
  const bool equal = losses[0].last == losses[1].last;
  const bool kept = reloaded < 0.5 * losses[0].first;
  return learned && equal && kept ? 0 : 1;
}

// Trains a small GPT, sharded over its ranks: fsdp-run -n 2 hello_unit
#include <fsdp/fsdp.h>
#include <torch/torch.h>
namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width)
      : mix(register_module("mix", nn::Linear(width, 3 * width))),
        mlp(register_module("mlp", nn::Sequential(nn::Linear(width, 4 * width), nn::GELU(),
                                                  nn::Linear(4 * width, width)))) {}
  at::Tensor forward(at::Tensor x) {
    const auto qkv = mix(at::layer_norm(x, {x.size(2)})).chunk(3, 2);
    x = x + at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return x + mlp->forward(at::layer_norm(x, {x.size(2)}));
  }
  nn::Linear mix;
  nn::Sequential mlp;
};
TORCH_MODULE(Block);
struct GptImpl : nn::Module {
  GptImpl(int64_t vocabulary, int64_t width)
      : tokens(register_module("tokens", fsdp::Unit<nn::Embedding>(vocabulary, width))),
        head(register_module("head", nn::Linear(width, vocabulary))) {
    for (const char* name : {"block0", "block1", "block2", "block3"})
      blocks.push_back(register_module(name, fsdp::Unit<Block>(width)));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids);
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  fsdp::Unit<nn::Embedding> tokens;  // a unit's parameters are gathered together
  std::vector<fsdp::Unit<Block>> blocks;
  nn::Linear head;
};
TORCH_MODULE(Gpt);

int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace&) {
  fsdp::BuildScope building(mesh, run.engine);  // each unit is sharded as soon as it exists
  fsdp::Unit<Gpt> model(64, 128);
  fsdp::Engine engine(model, building);
  fsdp::AdamW optimizer(engine, {.lr = 3e-3});
  const auto options = torch::dtype(torch::kLong).device(engine.device());
  if (mesh.rank() == 0) std::puts(engine.describe().c_str());
  for (int step = 1; step <= 50; ++step) {  // sequences that count upwards; each rank has its own
    const at::Tensor ids = (torch::randint(64, {8, 1}, options) + torch::arange(33, options)) % 64;
    const at::Tensor logits = model(ids.slice(1, 0, 32));
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), ids.slice(1, 1).flatten());
    loss.backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    if (mesh.rank() == 0) std::printf("step %d loss %.3f\n", step, loss.item<double>());
  }
  return 0;
}

// Without a launcher the program is one rank. fsdp-run and torchrun start several ranks. The
// options of the engine are flags (--help). An error is printed as one line and sets the exit code.
int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }

// The complete program of docs/everyday.md.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width) : linear(register_module("linear", nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& x) { return x + torch::relu(linear(x)); }
  nn::Linear linear;
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl(int64_t width, int64_t classes)
      : head(register_module("head", nn::Linear(width, classes))) {
    for (const char* name : {"block0", "block1"})
      blocks.push_back(register_module(name, fsdp::Unit<Block>(width)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<fsdp::Unit<Block>> blocks;  // each block is a unit
  nn::Linear head;                        // belongs to the unit around it, here the whole model
};
TORCH_MODULE(Net);

int train(const fsdp::Mesh& mesh, const fsdp::RunOptions& run, fsdp::ErrorPlace& place) {
  fsdp::BuildScope building(mesh, run.engine);
  fsdp::Unit<Net> model(8, 4);
  fsdp::Engine engine(model, building);  // ends the BuildScope
  fsdp::AdamW optimizer(engine, {.lr = 0.01});
  for (int step = 1; step <= 100; ++step) {
    place.step = step;  // for error lines
    const at::Tensor x = torch::randn({16, 8}, engine.device());
    const at::Tensor loss = at::cross_entropy_loss(model(x), x.slice(1, 0, 4).argmax(1));
    loss.backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    const double mean_loss = mesh.mean(loss);
    if (mesh.rank() == 0) std::printf("step %d loss %.3f\n", step, mean_loss);
  }
  return 0;
}

int main(int argc, char** argv) { return fsdp::run_program(argc, argv, train); }

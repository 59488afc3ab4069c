// LoRA with units by policy: the frozen base is sharded together with its adapters.
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include "ports/support/port.h"

namespace nn = torch::nn;

// A pretrained linear layer, plus a low-rank change of it. Only the change is trained.
struct LoraLinearImpl : nn::Module {
  LoraLinearImpl(int64_t in, int64_t out, int64_t rank)
      : base(register_module("base", nn::Linear(in, out))),
        lora_a(register_parameter("lora_a", torch::randn({rank, in}) / 8)),
        lora_b(register_parameter("lora_b", torch::zeros({out, rank}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return base(x) + 2 * at::linear(at::linear(x, lora_a), lora_b);
  }
  nn::Linear base;
  at::Tensor lora_a, lora_b;
};
TORCH_MODULE(LoraLinear);

struct NetImpl : nn::Module {
  NetImpl()
      : embed(register_module("embed", nn::Linear(64, 32))),
        layers(register_module("layers", nn::ModuleList())),
        head(register_module("head", nn::Linear(32, 10))) {
    for (int i = 0; i < 3; ++i) layers->push_back(LoraLinear(32, 32, 4));
    for (const auto& item : named_parameters())
      item.value().set_requires_grad(item.key().find("lora_") != std::string::npos);
  }
  at::Tensor forward(at::Tensor x) {
    x = embed(x);
    for (const auto& layer : *layers) x = x + at::gelu(layer->as<LoraLinear>()->forward(x));
    return head(x);
  }
  nn::Linear embed;
  nn::ModuleList layers;
  nn::Linear head;
};
TORCH_MODULE(Net);

int main() {
  const fsdp::Mesh mesh = fsdp::Mesh::from_env();
  ports::Run run(mesh);
  torch::manual_seed(1);
  Net model;
  fsdp::Engine engine(model, mesh, {.units = fsdp::by_type<LoraLinear>()});
#ifdef PORTS_TORCH_OPTIM
  torch::optim::AdamW optimizer(engine.parameters(), torch::optim::AdamWOptions(1e-2));
#else
  fsdp::AdamW optimizer(engine, {.lr = 1e-2});
#endif

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [x, labels] = ports::images(part, 1, 8, 10);
      const at::Tensor loss = at::cross_entropy_loss(engine.forward(model, x.flatten(1)), labels);
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    optimizer.step();
    run.end_step();
  }
  engine.visit_full_parameters([&](std::string_view fqn, const at::Tensor& value) {
    if (fqn.find("lora_") != std::string_view::npos) run.say("adapter", value.norm());
  });
}

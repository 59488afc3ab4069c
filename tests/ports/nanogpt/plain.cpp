// Trains a GPT to count, and lets it continue a count.
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "ports/nanogpt/plain_model.h"
#include "ports/support/port.h"

using namespace ports::plain_gpt;

double learning_rate(int64_t step) {  // a warm-up, then half a period of a cosine
  if (step < 2) return 1e-2 * static_cast<double>(step + 1) / 3;
  const double done = static_cast<double>(step - 2) / static_cast<double>(ports::kSteps - 2);
  return 1e-3 + 0.5 * (1 + std::cos(M_PI * done)) * (1e-2 - 1e-3);
}

int main() {
  ports::Run run;
  torch::manual_seed(1);
  Gpt model(GptConfig{});
  std::vector<at::Tensor> decayed, others;
  for (const at::Tensor& parameter : model->parameters())
    (parameter.dim() >= 2 ? decayed : others).push_back(parameter);
  using Options = torch::optim::AdamWOptions;
  torch::optim::AdamW optimizer(
      {{decayed, std::make_unique<Options>(Options(1e-2).betas({0.9, 0.95}).weight_decay(0.1))},
       {others, std::make_unique<Options>(Options(1e-2).betas({0.9, 0.95}).weight_decay(0))}});

  for (int64_t step = 0; step < ports::kSteps; ++step) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate(step));
    optimizer.zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [ids, next] = ports::counting(part, 31, 16);
      const at::Tensor logits = model(ids);
      const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), next.flatten());
      (loss / run.part_count()).backward();
      run.add("loss", loss);
    }
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    run.end_step();
  }
  torch::manual_seed(2);
  run.say("written", model->generate(torch::tensor({{1, 2, 3}}), 20, 5));
}

// Trains an LSTM language model. Each step starts from the final state of the previous step.
#include <torch/torch.h>

#include <tuple>

#include "ports/support/port.h"

namespace nn = torch::nn;

using State = std::tuple<at::Tensor, at::Tensor>;

struct LanguageModelImpl : nn::Module {
  LanguageModelImpl(int64_t vocabulary, int64_t width)
      : encoder(register_module("encoder", nn::Embedding(vocabulary, width))),
        rnn(register_module("rnn", nn::LSTM(nn::LSTMOptions(width, width).num_layers(2)))),
        decoder(register_module("decoder", nn::Linear(width, vocabulary))) {}
  std::tuple<at::Tensor, State> forward(at::Tensor ids, State hidden) {
    const auto [seen, next] = rnn(encoder(ids), hidden);
    return {decoder(seen), next};
  }
  nn::Embedding encoder;
  nn::LSTM rnn;
  nn::Linear decoder;
};
TORCH_MODULE(LanguageModel);

int main() {
  ports::Run run;
  torch::manual_seed(1);
  LanguageModel model(29, 20);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1.0));

  std::vector<State> hidden;
  for (const ports::Part& part : run.parts(0)) {
    const at::Tensor zeros = torch::zeros({2, ports::kBatch / part.count, 20});
    hidden.push_back({zeros, zeros});
  }
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    model->zero_grad();
    for (const ports::Part& part : run.parts(step)) {
      const auto [ids, next] = ports::counting(part, 29, 7);
      const auto [h, c] = hidden[part.slot];
      const auto [logits, carried] = model(ids.t(), State(h.detach(), c.detach()));
      const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), next.t().flatten());
      (loss / run.part_count()).backward();
      hidden[part.slot] = carried;
      run.add("loss", loss);
    }
    nn::utils::clip_grad_norm_(model->parameters(), 0.25);
    optimizer.step();
    run.end_step();
  }
}

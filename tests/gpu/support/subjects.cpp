#include "gpu/support/subjects.h"

#include "models/bert/bert_model.h"
#include "models/gpt.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

constexpr gpt::GptConfig kGpt{
    .layers = 2, .hidden = 32, .heads = 4, .block_size = 8, .vocabulary = 50};

bert::Config config_of(SmallModel model) {
  bert::Config config{.hidden_dropout_prob = 0, .attention_probs_dropout_prob = 0};
  if (model == SmallModel::kBertMini) {
    config.hidden_size = 256;
    config.num_hidden_layers = 4;
    config.num_attention_heads = 4;
    config.intermediate_size = 1024;
  } else {
    config.vocab_size = 60;
    config.hidden_size = 32;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.intermediate_size = 64;
    config.max_position_embeddings = 16;
  }
  return config;
}

at::Tensor ids_of(int64_t vocabulary, int64_t length, int step, int rank) {
  const at::Generator generator = at::detail::createCPUGenerator(100 * step + rank);
  return torch::randint(vocabulary, {3, length}, generator, torch::kLong);
}

class GptSubject final : public Subject {
 public:
  std::shared_ptr<torch::nn::Module> module() override { return model_.ptr(); }
  at::Tensor loss(int step, int rank, at::Device device) override {
    const at::Tensor ids = ids_of(kGpt.vocabulary, 8, step, rank).to(device);
    const at::Tensor logits = model_(ids.slice(1, 0, -1));
    return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), ids.slice(1, 1).flatten());
  }

 private:
  Unit<gpt::Gpt> model_{kGpt};
};

class BertSubject final : public Subject {
 public:
  explicit BertSubject(const bert::Config& config) : model_(config) {}
  std::shared_ptr<torch::nn::Module> module() override { return model_.ptr(); }
  at::Tensor loss(int step, int rank, at::Device device) override {
    const at::Tensor ids = ids_of(60, 10, step, rank).to(device);
    const at::Tensor mask = torch::ones_like(ids);
    const at::Tensor logits = model_(ids, torch::zeros_like(ids), mask).span_BS2;
    const at::Tensor starts = logits.select(-1, 0).to(at::kFloat);
    const at::Tensor ends = logits.select(-1, 1).to(at::kFloat);
    const at::Tensor answer = ids.select(1, 0).remainder(10);
    return at::cross_entropy_loss(starts, answer) + at::cross_entropy_loss(ends, answer);
  }

 private:
  Unit<bert::QuestionAnswering> model_;
};

}  // namespace

std::unique_ptr<Subject> make_subject(SmallModel model) {
  return build_seeded(7, [model]() -> std::unique_ptr<Subject> {
    if (model == SmallModel::kRoundedOnce) return make_rounded_subject();
    if (model == SmallModel::kGpt) return std::make_unique<GptSubject>();
    return std::make_unique<BertSubject>(config_of(model));
  });
}

}  // namespace fsdp::testing

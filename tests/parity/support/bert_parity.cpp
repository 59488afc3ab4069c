#include "parity/support/bert_parity.h"

#include <fsdp/optim.h>
#include <fsdp/safetensors_folder.h>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/weight_names.h"
#include "models/bert/bert_model.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

using Model = Unit<bert::QuestionAnswering>;
constexpr int kSteps = 20;

at::Tensor loss_of(Model& model, int step, int rank) {
  const at::Generator generator = at::detail::createCPUGenerator(1000 * step + rank);
  const int64_t length = 16 + (step * 5 + rank * 3) % 16;  // ranks pad differently
  const at::Tensor ids = torch::randint(1000, 20000, {2, length}, generator, torch::kLong);
  const at::Tensor answers = torch::randint(length, {2, 2}, generator, torch::kLong);
  const at::Tensor logits = model(ids, torch::zeros_like(ids), torch::ones_like(ids));
  return bert::span_loss_sum(logits, answers.select(1, 0), answers.select(1, 1)) / 2;
}

std::vector<float> train_plain(Model& model, int world, ParityOptimizer kind) {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind == ParityOptimizer::kSgd) {
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        model->parameters(), torch::optim::AdamWOptions(1e-4).weight_decay(0.01));
  }
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    mean_gradients(*model, world, [&](int rank) {
      const at::Tensor loss = loss_of(model, step, rank);
      loss.backward();
      if (rank == 0) losses.push_back(loss.item<float>());
    });
    optimizer->step();
  }
  return losses;
}

}  // namespace

ParityReport train_sharded_and_plain(const Mesh& mesh, const std::filesystem::path& folder,
                                     ParityOptimizer kind, bool map_shards) {
  const SafetensorsFolder files(folder);
  bert::Config config = bert_qa::read_model_config(folder / "config.json");
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  Model model = build_seeded(3, [&] { return Model(config); });
  Engine engine(model, mesh, {.map_shards = map_shards, .unit_options = bert::unit_options});
  load_weights(engine, files.files(), bert_qa::load_options(nullptr));
  const auto start = full_parameters(engine);
  std::unique_ptr<Optimizer> optimizer;
  if (kind == ParityOptimizer::kSgd) {
    optimizer = std::make_unique<SGD>(engine, SgdOptions{.lr = 0.01, .momentum = 0.9});
  } else {
    optimizer = std::make_unique<AdamW>(engine, AdamWOptions{.lr = 1e-4, .weight_decay = 0.01});
  }
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = loss_of(model, step, mesh.rank());
    loss.backward();
    losses.push_back(loss.item<float>());
    optimizer->step();
    optimizer->zero_grad();
  }
  const auto sharded = full_parameters(engine);
  ParityReport report{.gathers = engine.stats().all_gathers};
  if (mesh.rank() != 0) return report;

  Model plain = build_seeded(3, [&] { return Model(config); });
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : plain->named_parameters()) {
      at::Tensor parameter = item.value();
      parameter.copy_(start.at(item.key()));
    }
  }
  const std::vector<float> expected = train_plain(plain, mesh.world_size(), kind);
  for (int step = 0; step < kSteps; ++step) {
    report.losses_bit_equal = report.losses_bit_equal && losses[step] == expected[step];
    report.loss_difference = std::max<double>(
        report.loss_difference, std::abs(losses[step] - expected[step]) / std::abs(expected[step]));
  }
  for (const auto& [fqn, value] : plain_parameters(*plain)) {
    if (!bit_equal(value, sharded.at(fqn))) report.first_different = fqn;
  }
  return report;
}

}  // namespace fsdp::testing

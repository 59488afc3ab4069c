#include "parity/support/bert_parity.h"

#include <fmt/format.h>
#include <fsdp/optim.h>
#include <fsdp/safetensors_folder.h>

#include <bit>
#include <functional>
#include <string_view>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/weight_names.h"
#include "models/bert/bert_model.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

using Model = Unit<bert::QuestionAnswering>;
constexpr int kSteps = 20;

Model make_model(const std::filesystem::path& folder) {
  bert::Config config = bert_qa::read_model_config(folder / "config.json");
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0;
  return build_seeded(3, [&] { return Model(config); });
}

void load(Engine& engine, const std::filesystem::path& folder) {
  const SafetensorsFolder files(folder);
  load_weights(engine, files.files(), bert_qa::load_options(nullptr));
}

at::Tensor loss_of(Model& model, int step, int rank) {
  const at::Generator generator = at::detail::createCPUGenerator(1000 * step + rank);
  const int64_t length = 16 + (step * 5 + rank * 3) % 16;  // ranks have different lengths
  const at::Tensor ids = torch::randint(1000, 20000, {2, length}, generator, torch::kLong);
  const at::Tensor answers = torch::randint(length, {2, 2}, generator, torch::kLong);
  const at::Tensor logits = model(ids, torch::zeros_like(ids), torch::ones_like(ids)).span_BS2;
  return bert::span_loss_sum(logits, answers.select(1, 0), answers.select(1, 1)) / 2;
}

}  // namespace

TrainedBert train_sharded(const Mesh& mesh, const std::filesystem::path& folder,
                          ParityOptimizer kind, Options options) {
  Model model = make_model(folder);
  options.unit_options = bert::unit_options;
  Engine engine(model, mesh, options);
  load(engine, folder);
  std::unique_ptr<Optimizer> optimizer;
  if (kind == ParityOptimizer::kSgd) {
    optimizer = std::make_unique<SGD>(engine, SgdOptions{.lr = 0.01, .momentum = 0.9});
  } else {
    optimizer = std::make_unique<AdamW>(engine, AdamWOptions{.lr = 1e-4, .weight_decay = 0.01});
  }
  TrainedBert trained;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = loss_of(model, step, mesh.rank());
    loss.backward();
    trained.losses.push_back(loss.item<float>());
    optimizer->step();
    optimizer->zero_grad();
  }
  trained.gathers = engine.stats().all_gathers;
  trained.parameters = full_parameters(engine);
  return mesh.rank() == 0 ? trained : TrainedBert{};
}

TrainedBert train_plain(const MeshShape& shape, const std::filesystem::path& folder,
                        ParityOptimizer kind) {
  Model model = make_model(folder);
  {
    Model loaded = make_model(folder);
    Engine engine(loaded, Mesh::single());
    load(engine, folder);
    const auto start = full_parameters(engine);
    const at::NoGradGuard no_grad;
    for (const auto& item : model->named_parameters()) {
      at::Tensor parameter = item.value();
      parameter.copy_(start.at(item.key()));
    }
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (kind == ParityOptimizer::kSgd) {
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(0.01).momentum(0.9));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        model->parameters(), torch::optim::AdamWOptions(1e-4).weight_decay(0.01));
  }
  TrainedBert trained;
  for (int step = 0; step < kSteps; ++step) {
    mean_gradients_by_groups(*model, shape, [&](int rank) {
      const at::Tensor loss = loss_of(model, step, rank);
      loss.backward();
      if (rank == 0) trained.losses.push_back(loss.item<float>());
    });
    optimizer->step();
  }
  trained.parameters = plain_parameters(*model);
  return trained;
}

std::string bits_of(const TrainedBert& trained) {
  std::string text;
  for (const float loss : trained.losses) {
    text += fmt::format("loss {:08x}\n", std::bit_cast<uint32_t>(loss));
  }
  for (const auto& [fqn, value] : trained.parameters) {
    const at::Tensor whole = value.contiguous();
    const std::string_view bytes(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    text += fmt::format("{} {:016x}\n", fqn, std::hash<std::string_view>()(bytes));
  }
  return text;
}

}  // namespace fsdp::testing

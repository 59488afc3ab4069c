#include "gpu/support/training.h"

#include <fmt/format.h>
#include <fsdp/engine.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "models/bert/bert_model.h"
#include "models/gpt.h"
#include "plan/placement.h"
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

class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::shared_ptr<torch::nn::Module> module() = 0;
  virtual at::Tensor loss(int step, int rank) = 0;
};

class GptSubject final : public Subject {
 public:
  std::shared_ptr<torch::nn::Module> module() override { return model_.ptr(); }
  at::Tensor loss(int step, int rank) override {
    const at::Tensor ids = ids_of(kGpt.vocabulary, 8, step, rank);
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
  at::Tensor loss(int step, int rank) override {
    const at::Tensor ids = ids_of(60, 10, step, rank);
    const at::Tensor mask = torch::ones({3, 10}, torch::kLong);
    const at::Tensor logits = model_(ids, torch::zeros({3, 10}, torch::kLong), mask);
    const at::Tensor starts = logits.select(-1, 0).to(at::kFloat);
    const at::Tensor ends = logits.select(-1, 1).to(at::kFloat);
    const at::Tensor answer = ids.select(1, 0).remainder(10);
    return at::cross_entropy_loss(starts, answer) + at::cross_entropy_loss(ends, answer);
  }

 private:
  Unit<bert::QuestionAnswering> model_;
};

std::unique_ptr<Subject> make_subject(SmallModel model) {
  return build_seeded(7, [model]() -> std::unique_ptr<Subject> {
    if (model == SmallModel::kGpt) return std::make_unique<GptSubject>();
    return std::make_unique<BertSubject>(config_of(model));
  });
}

// `waits`: how often the host has waited so far.
TrainingResult train(const Training& training, const RunRanksOptions& options,
                     const std::function<int64_t()>& waits) {
  TrainingResult result;
  RunRanksOptions in_groups = options;
  in_groups.mesh.replicate = training.groups;
  run_ranks(
      training.world,
      [&](const Mesh& mesh) {
        const auto subject = make_subject(training.model);
        Engine engine(subject->module(), mesh, training.options);
        AdamW optimizer(engine, {.lr = 1e-2, .weight_decay = 0.1});
        std::vector<at::Tensor> losses;
        for (int step = 0; step < training.steps; ++step) {
          if (step == 1) {
            mesh.agree("begin", {});
            if (mesh.rank() == 0) result.host_waits = waits();
            mesh.agree("counted", {});
          }
          const at::Tensor loss = subject->loss(step, mesh.rank());
          loss.backward();
          losses.push_back(loss.detach());
          optimizer.clip_grad_norm(1.0);
          optimizer.step();
          optimizer.zero_grad();
        }
        mesh.agree("end", {});
        if (mesh.rank() == 0) {
          result.host_waits = waits() - result.host_waits;
          for (const at::Tensor& loss : losses) result.losses.push_back(loss.item<float>());
        }
        mesh.agree("counted", {});
        auto parameters = full_parameters(engine);
        if (mesh.rank() == 0) result.parameters = std::move(parameters);
      },
      in_groups);
  return result;
}

RunRanksOptions in_one_thread_each() {
  RunRanksOptions options = torch_ranks_options();
  options.make = nullptr;
  return options;
}

}  // namespace

std::string describe(const Training& training) {
  const Options& options = training.options;
  constexpr std::array kNames{"gpt", "bert", "bert mini"};
  return fmt::format(
      "{} on {} ranks{}, {}, prefetch {}, {} to {}{}", kNames[static_cast<size_t>(training.model)],
      training.world, training.groups > 1 ? " in two groups" : "", name_of(options.strategy),
      options.prefetch_units, options.param_dtype ? name_of(*options.param_dtype) : "float32",
      name_of(options.reduce_dtype), options.cpu_offload ? ", main state on the host" : "");
}

TrainingResult train_on_cpu(const Training& training) {
  return train(training, in_one_thread_each(), [] { return 0; });
}

TrainingResult train_on_gpu(const Training& training,
                            const std::shared_ptr<SimulatedSession>& session) {
  RunRanksOptions options = in_one_thread_each();
  options.make = [&](int world, const MeshOptions& mesh) {
    return simulated_ranks(world, mesh, session);
  };
  return train(training, options, [&] {
    int64_t all = 0;
    for (const auto& [what, count] : session->gpu.host_waits()) all += count;
    return all;
  });
}

std::string difference(const TrainingResult& one, const TrainingResult& other) {
  for (size_t i = 0; i < one.losses.size(); ++i) {
    if (one.losses[i] == other.losses.at(i)) continue;
    return fmt::format("loss {}: {:.9} and {:.9}", i, one.losses[i], other.losses[i]);
  }
  for (const auto& [fqn, value] : one.parameters) {
    const at::Tensor& there = other.parameters.at(fqn);
    if (bit_equal(value, there)) continue;
    return fmt::format("{}: {} of {} elements, by {:.3g} at most", fqn,
                       value.ne(there).sum().item<int64_t>(), value.numel(),
                       (value - there).abs().max().item<double>());
  }
  return one.parameters.size() == other.parameters.size() ? "" : "other parameters";
}

std::vector<Training> all_trainings(SmallModel model) {
  constexpr int kRows = 5 * 3 * 2 * 7 * 2;
  std::vector<Training> all;
  for (int i = 0; i < kRows; ++i) {
    const int row = i * 53 % kRows;
    const int world = row % 5 + 1;  // the fifth is four in two groups
    const Strategy strategy = kAllStrategies[row / 30 % 7];
    if (is_by_groups(strategy) != (world == 5)) continue;
    const DType dtype = row / 15 % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
    all.push_back({.model = model,
                   .world = std::min(world, 4),
                   .groups = world == 5 ? 2 : 1,
                   .options = {.param_dtype = dtype,
                               .reduce_dtype = dtype,
                               .prefetch_units = row / 5 % 3,
                               .cpu_offload = row / 210 == 1,
                               .strategy = strategy}});
  }
  return all;
}

// Kept is what holds a pair that none before held.
std::vector<Training> covering_trainings(SmallModel model) {
  std::vector<Training> kept;
  std::set<std::string> held;
  for (const Training& training : all_trainings(model)) {
    const std::array<std::string, 5> row{fmt::format("{} in {}", training.world, training.groups),
                                         std::to_string(training.options.prefetch_units),
                                         std::string(name_of(training.options.reduce_dtype)),
                                         std::string(name_of(training.options.strategy)),
                                         training.options.cpu_offload ? "offload" : ""};
    bool is_new = false;
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) {
        is_new |= held.insert(fmt::format("{}:{} {}:{}", a, row[a], b, row[b])).second;
      }
    }
    if (is_new) kept.push_back(training);
  }
  return kept;
}

}  // namespace fsdp::testing

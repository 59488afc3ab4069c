#include "bert_qa/run/synthetic_task.h"

#include <c10/core/GradMode.h>
#include <fsdp/batch_transfer.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bert_qa/run/batch.h"
#include "bert_qa/squad/synthetic_qa.h"

namespace bert_qa {
namespace {

constexpr int64_t kWindows = 1024;  // windows per epoch
constexpr int64_t kScoredWindows = 256;
constexpr int64_t kShortest = 64;

// Returns the options of the generator. The ids of special tokens are BERT's. If the vocabulary is
// too small for them, the first ids are used.
SyntheticOptions options_of(const Settings& settings, const bert::Config& config) {
  const bool bert_vocabulary = config.vocab_size >= 2000;
  return {.seed = settings.seed,
          .window_count =
              settings.data.max_train_samples >= 0 ? settings.data.max_train_samples : kWindows,
          .min_length = std::min(kShortest, settings.data.max_seq_length),
          .max_length = settings.data.max_seq_length,
          .vocab_size = config.vocab_size,
          .pad_id = config.pad_token_id,
          .cls_id = bert_vocabulary ? 101 : config.pad_token_id + 1,
          .sep_id = bert_vocabulary ? 102 : config.pad_token_id + 2,
          .first_word_id = bert_vocabulary ? 999 : config.pad_token_id + 3,
          .learnable = settings.data.source == DataSource::kLearnable,
          .answer_types = config.answer_types};
}

}  // namespace

WindowSource synthetic_source(const Settings& settings, const bert::Config& config) {
  // The generator is shared by all copies of the two functions.
  const auto generator = std::make_shared<SyntheticQa>(options_of(settings, config));
  return {.count = generator->window_count(),
          .length = [generator](int64_t epoch,
                                int64_t window) { return generator->window_length(epoch, window); },
          .make_batch =
              [generator](int64_t epoch, std::span<const int64_t> windows, int64_t length) {
                return generator->make_batch(epoch, windows, length);
              }};
}

std::optional<nlohmann::ordered_json> score_synthetic(const Settings& settings,
                                                      fsdp::Unit<bert::QuestionAnswering> model,
                                                      const fsdp::Engine& engine,
                                                      const bert::Config& config,
                                                      const Evaluation& evaluation) {
  const at::NoGradGuard no_grad;
  model->eval();
  SyntheticOptions options = options_of(settings, config);
  options.seed += 1;  // gives windows that were not used in training
  options.window_count = kScoredWindows;
  const SyntheticQa generator(options);
  const fsdp::Mesh& mesh = engine.mesh();
  const int64_t size = settings.answers.eval_batch_size;
  const int64_t in_round = size * mesh.world_size();
  const int64_t rounds = (kScoredWindows + in_round - 1) / in_round;
  fsdp::BatchTransfer<Batch> batches(engine, rounds, [&](int64_t round) {
    // In the last round some ranks have no window; their padding has labels that never match.
    const int64_t first = std::min(round * in_round + mesh.rank() * size, kScoredWindows);
    std::vector<int64_t> windows(std::min(size, kScoredWindows - first));
    std::iota(windows.begin(), windows.end(), first);
    return make_tensors(generator.make_batch(0, windows));
  });
  double right = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    if (evaluation.must_stop()) return std::nullopt;
    const Batch batch = batches.next();
    const bert::Logits logits = model(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS);
    const at::Tensor best_B2 = logits.span_BS2.argmax(1);
    at::Tensor found_B =
        (best_B2.select(1, 0) == batch.first_B) & (best_B2.select(1, 1) == batch.last_B);
    if (logits.types_BA.defined()) found_B &= logits.types_BA.argmax(1) == batch.types_B;
    right += found_B.sum().item<double>();
  }
  const double share = mesh.sum(right, "score") / kScoredWindows;
  return nlohmann::ordered_json{{"exact_match", 100 * share}, {"eval_samples", kScoredWindows}};
}

}  // namespace bert_qa

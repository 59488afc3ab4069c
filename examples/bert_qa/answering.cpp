#include "answering.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "batch.h"
#include "data/atomic_file.h"
#include "data/qa_metric.h"
#include "progress.h"
#include "rank_values.h"

namespace bert_qa {
namespace {

// Windows of like lengths share a batch; which rank and batch a window falls into changes nothing
// but the time.
std::vector<int64_t> by_length(const fsdp::QaFeatures& features) {
  std::vector<int64_t> order(features.window_count());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{},
                           [&](int64_t window) { return features.window_length(window); });
  return order;
}

// The logits of `windows` as [batch_size][2][row] floats; rows and windows beyond are zero.
std::vector<float> run_batch(fsdp::Unit<QuestionAnswering>& model, const fsdp::QaFeatures& features,
                             std::span<const int64_t> windows, int64_t batch_size, int64_t row) {
  const Batch batch(fsdp::make_batch(features, windows));
  const at::Tensor logits_B2S = model(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS)
                                    .to(at::kFloat)
                                    .transpose(1, 2)
                                    .contiguous();
  const int64_t length = logits_B2S.size(2);
  std::vector<float> padded(batch_size * 2 * row);
  for (size_t i = 0; i < 2 * windows.size(); ++i) {
    std::memcpy(padded.data() + i * row, logits_B2S.const_data_ptr<float>() + i * length,
                length * sizeof(float));
  }
  return padded;
}

}  // namespace

Answered answer(fsdp::Unit<QuestionAnswering> model, const fsdp::Engine& engine,
                const Questions& questions, const Settings& settings) {
  const at::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const fsdp::Mesh& mesh = engine.mesh();
  const fsdp::QaFeatures& features = questions.features;
  const int64_t batch_size = settings.answers.eval_batch_size;
  const int64_t ranks = mesh.world_size(), count = features.window_count();
  const bool decodes = mesh.rank() == 0;
  std::vector<fsdp::WindowLogits> logits(decodes ? count : 0);
  const std::vector<int64_t> order = by_length(features);
  Progress progress(decodes ? stdout : nullptr, "answering", count, 100 * batch_size * ranks);
  for (int64_t begin = 0; begin < count; begin += batch_size * ranks) {
    const auto share = [&](int64_t rank) {
      const int64_t first = std::min(begin + rank * batch_size, count);
      return std::span(order).subspan(first, std::min(batch_size, count - first));
    };
    const int64_t row = features.window_length(order[begin]);  // the longest of all ranks
    const std::vector<float> gathered = gather_from_ranks(
        mesh, run_batch(model, features, share(mesh.rank()), batch_size, row), "logits");
    const float* next = gathered.data();
    for (int64_t rank = 0; decodes && rank < ranks; ++rank) {
      next = gathered.data() + rank * batch_size * 2 * row;
      for (const int64_t window : share(rank)) {
        const int64_t length = features.window_length(window);
        logits[window] = {.start = {next, next + length}, .end = {next + row, next + row + length}};
        next += 2 * row;
      }
    }
    progress.update(std::min(begin + batch_size * ranks, count), "windows");
  }
  model->train(was_training);
  Answered answered{.seconds = progress.seconds()};
  if (decodes) {
    answered.answers = fsdp::decode_answers(
        questions.dataset, features, logits,
        {.n_best_size = settings.answers.n_best_size,
         .max_answer_length = settings.answers.max_answer_length,
         .version_2_with_negative = settings.answers.version_2,
         .null_score_diff_threshold = settings.answers.null_score_diff_threshold});
  }
  return answered;
}

nlohmann::ordered_json score(const Questions& questions, const Answered& answered,
                             const AnswerSettings& settings) {
  std::vector<std::string> texts;
  std::vector<float> null_scores;
  for (const fsdp::DecodedAnswer& each : answered.answers) {
    texts.push_back(each.text);
    null_scores.push_back(each.null_score_diff);
  }
  if (settings.version_2) {
    return fsdp::metrics_json(fsdp::score_v2(questions.dataset, texts, null_scores));
  }
  return fsdp::metrics_json(fsdp::score_v1(questions.dataset, texts));
}

void write_answers(const Answered& answered, const Settings& settings) {
  const auto write = [&](const char* name, const nlohmann::ordered_json& json) {
    fsdp::write_file(settings.output_dir / name, json.dump(2) + "\n");
  };
  write("predictions.json", fsdp::predictions_json(answered.answers));
  write("nbest_predictions.json", fsdp::n_best_json(answered.answers));
  if (settings.answers.version_2) write("null_odds.json", fsdp::null_odds_json(answered.answers));
}

std::string some_answers(const Questions& questions, const Answered& answered) {
  constexpr int64_t kShown = 5;
  std::string text;
  const auto count = static_cast<int64_t>(answered.answers.size());
  const int64_t shown = std::min(kShown, count);
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t at = i * count / shown;  // spread over the file
    const fsdp::QaQuestion& question = questions.dataset.questions[at];
    const std::string& answer = answered.answers[at].text;
    text += fmt::format("  Q: {}\n  A: {}\n", question.question,
                        answer.empty() ? "(no answer)" : answer);
    const bool right = std::ranges::any_of(question.answers, [&](const fsdp::QaAnswer& gold) {
      return fsdp::is_exact_match(answer, gold.text);
    });
    if (right) {
      text += "     right\n";
    } else if (!question.answers.empty()) {
      text += fmt::format("     expected: {}\n", question.answers.front().text);
    }
  }
  return text;
}

}  // namespace bert_qa

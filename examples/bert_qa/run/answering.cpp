#include "bert_qa/run/answering.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fsdp/agreement.h>
#include <fsdp/batch_transfer.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "bert_qa/run/batch.h"
#include "bert_qa/run/output_folder.h"
#include "bert_qa/squad/qa_metric.h"
#include "terminal/status_line.h"

namespace bert_qa {
namespace {

// A round, in which every rank runs one batch, in the order of the file. A rank without windows
// runs padding, so that all ranks issue the same collectives.
struct Round {
  int64_t begin, count, batch_size;

  std::vector<int64_t> windows_of(int64_t rank) const {
    const int64_t first = std::min(begin + rank * batch_size, count);
    std::vector<int64_t> windows(std::min(batch_size, count - first));
    std::iota(windows.begin(), windows.end(), first);
    return windows;
  }
};

// Returns the logits of a rank's windows as [batch_size][2][row] floats, padded with zeros. The
// padding gives all ranks the same size, which a gather requires.
std::vector<float> run_batch(fsdp::Unit<bert::QuestionAnswering>& model, const Batch& batch,
                             size_t windows, int64_t batch_size, int64_t row) {
  const at::Tensor logits_B2S = model(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS)
                                    .to(at::kFloat)
                                    .transpose(1, 2)
                                    .contiguous()
                                    .cpu();
  const int64_t length = logits_B2S.size(2);
  std::vector<float> padded(batch_size * 2 * row);
  for (size_t i = 0; i < 2 * windows; ++i) {
    std::memcpy(padded.data() + i * row, logits_B2S.const_data_ptr<float>() + i * length,
                length * sizeof(float));
  }
  return padded;
}

// Copies the logits of one rank from the layout of run_batch.
void take_logits(const float* padded, const QaFeatures& features, std::span<const int64_t> windows,
                 int64_t row, std::vector<WindowLogits>& logits) {
  for (const int64_t window : windows) {
    const float* end = padded + row;
    const int64_t length = features.window_length(window);
    logits[window] = {.start = {padded, padded + length}, .end = {end, end + length}};
    padded += 2 * row;
  }
}

// Returns the logits of all windows on rank 0, and an empty list on the other ranks. Returns
// nothing if the evaluation must stop.
std::optional<std::vector<WindowLogits>> run_windows(fsdp::Unit<bert::QuestionAnswering>& model,
                                                     const fsdp::Engine& engine,
                                                     const QaFeatures& features, int64_t batch_size,
                                                     const Evaluation& evaluation) {
  const fsdp::Mesh& mesh = engine.mesh();
  const int64_t count = features.window_count(), in_round = batch_size * mesh.world_size();
  const bool collects = mesh.rank() == 0;
  // One row length for all rounds: the longest window, which every rank computes itself.
  int64_t row = 0;
  for (int64_t window = 0; window < count; ++window) {
    row = std::max(row, features.window_length(window));
  }
  std::vector<WindowLogits> logits(collects ? count : 0);
  terminal::StatusLine progress(evaluation.console, "answering", count, count);
  const auto round_of = [&](int64_t begin) {
    return Round{.begin = begin, .count = count, .batch_size = batch_size};
  };
  fsdp::BatchTransfer<Batch> batches(engine, (count + in_round - 1) / in_round, [&](int64_t index) {
    const Round round = round_of(index * in_round);
    return make_tensors(make_batch(features, round.windows_of(mesh.rank())));
  });
  for (int64_t begin = 0; begin < count; begin += in_round) {
    if (evaluation.must_stop()) return std::nullopt;
    const Round round = round_of(begin);
    const size_t mine = round.windows_of(mesh.rank()).size();
    const std::vector<float> gathered =
        mesh.gather(run_batch(model, batches.next(), mine, batch_size, row), "logits");
    for (int rank = 0; collects && rank < mesh.world_size(); ++rank) {
      take_logits(gathered.data() + rank * batch_size * 2 * row, features, round.windows_of(rank),
                  row, logits);
    }
    progress.update(std::min(begin + in_round, count), "windows");
  }
  return logits;
}

}  // namespace

std::optional<Answered> answer(fsdp::Unit<bert::QuestionAnswering> model,
                               const fsdp::Engine& engine, const Questions& questions,
                               const AnswerSettings& settings, const Evaluation& evaluation) {
  const at::NoGradGuard no_grad;
  const auto began = std::chrono::steady_clock::now();
  model->eval();
  const std::optional<std::vector<WindowLogits>> logits =
      run_windows(model, engine, questions.features, settings.eval_batch_size, evaluation);
  if (!logits) return std::nullopt;
  Answered answered;
  // The other ranks wait here while rank 0 decodes. In a collective their wait would time out.
  fsdp::run_or_throw_on_all_ranks(engine.mesh(), "choosing the answers", [&] {
    if (engine.mesh().rank() != 0) return;
    answered.answers =
        decode_answers(questions.dataset, questions.features, *logits,
                       {.n_best_size = settings.n_best_size,
                        .max_answer_length = settings.max_answer_length,
                        .version_2_with_negative = settings.version_2,
                        .null_score_diff_threshold = settings.null_score_diff_threshold});
  });
  answered.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return answered;
}

nlohmann::ordered_json score(const Questions& questions, const Answered& answered,
                             const AnswerSettings& settings) {
  std::vector<std::string> texts;
  std::vector<float> null_scores;
  for (const DecodedAnswer& each : answered.answers) {
    texts.push_back(each.text);
    null_scores.push_back(each.null_score_diff);
  }
  if (settings.version_2) {
    nlohmann::ordered_json metrics = metrics_json(score_v2(questions.dataset, texts, null_scores));
    metrics["exact_match"] = metrics["exact"];  // the name in v1.1
    return metrics;
  }
  return metrics_json(score_v1(questions.dataset, texts));
}

void write_answers(const Answered& answered, const AnswerSettings& settings,
                   const std::filesystem::path& folder) {
  const auto write = [&](const char* name, const nlohmann::ordered_json& json) {
    write_json(folder / name, json);
  };
  write("predictions.json", predictions_json(answered.answers));
  write("nbest_predictions.json", n_best_json(answered.answers));
  if (settings.version_2) write("null_odds.json", null_odds_json(answered.answers));
}

std::string some_answers(const Questions& questions, const Answered& answered) {
  constexpr int64_t kShown = 5;
  std::string text;
  const auto count = static_cast<int64_t>(answered.answers.size());
  const int64_t shown = std::min(kShown, count);
  for (int64_t i = 0; i < shown; ++i) {
    const int64_t at = i * count / shown;  // questions spread over the file
    const QaQuestion& question = questions.dataset.questions[at];
    const std::string& answer = answered.answers[at].text;
    text += fmt::format("  Q: {}\n  A: {}\n", fsdp::printable(question.question),
                        answer.empty() ? "(no answer)" : fsdp::printable(answer));
    const bool right = std::ranges::any_of(
        question.answers, [&](const QaAnswer& gold) { return is_exact_match(answer, gold.text); });
    if (right) {
      text += "     right\n";
    } else if (!question.answers.empty()) {
      text += fmt::format("     expected: {}\n", fsdp::printable(question.answers.front().text));
    }
  }
  return text;
}

}  // namespace bert_qa

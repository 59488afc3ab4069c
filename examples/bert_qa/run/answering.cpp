#include "bert_qa/run/answering.h"

#include <c10/core/GradMode.h>
#include <fsdp/agreement.h>
#include <fsdp/batch_transfer.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "bert_qa/run/batch.h"
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

// The sizes of a window's logits in a gather. They are equal for all windows, as a gather requires.
struct LogitSizes {
  int64_t row = 0;    // start logits, then as many end logits
  int64_t types = 0;  // then the logits of answer types

  int64_t of_window() const { return 2 * row + types; }
};

// Returns the logits of a rank's windows, padded with zeros to `batch_size` windows.
std::vector<float> run_batch(fsdp::Unit<bert::QuestionAnswering>& model, const Batch& batch,
                             size_t windows, int64_t batch_size, const LogitSizes& sizes) {
  const bert::Logits logits = model(batch.ids_BS, batch.segments_BS, batch.attention_mask_BS);
  const at::Tensor span_B2S = logits.span_BS2.to(at::kFloat).transpose(1, 2).contiguous().cpu();
  const at::Tensor types_BA =
      sizes.types > 0 ? logits.types_BA.to(at::kFloat).contiguous().cpu() : at::Tensor();
  const int64_t length = span_B2S.size(2);
  std::vector<float> padded(batch_size * sizes.of_window());
  for (size_t i = 0; i < windows; ++i) {
    float* const to = padded.data() + i * sizes.of_window();
    const float* const from = span_B2S.const_data_ptr<float>() + 2 * i * length;
    std::memcpy(to, from, length * sizeof(float));
    std::memcpy(to + sizes.row, from + length, length * sizeof(float));
    if (sizes.types == 0) continue;
    std::memcpy(to + 2 * sizes.row, types_BA.const_data_ptr<float>() + i * sizes.types,
                sizes.types * sizeof(float));
  }
  return padded;
}

// Copies the logits of one rank from the layout of run_batch.
void take_logits(const float* padded, const Windows& all, std::span<const int64_t> windows,
                 const LogitSizes& sizes, std::vector<WindowLogits>& logits) {
  for (const int64_t window : windows) {
    const float* const end = padded + sizes.row;
    const float* const types = end + sizes.row;
    const int64_t length = all.window_length(window);
    logits[window] = {.start = {padded, padded + length},
                      .end = {end, end + length},
                      .types = {types, types + sizes.types}};
    padded += sizes.of_window();
  }
}

// Returns the logits of all windows on rank 0, and an empty list on the other ranks. Returns
// nothing if the evaluation must stop.
std::optional<std::vector<WindowLogits>> run_windows(fsdp::Unit<bert::QuestionAnswering>& model,
                                                     const fsdp::Engine& engine, const Windows& all,
                                                     int64_t batch_size,
                                                     const Evaluation& evaluation) {
  const fsdp::Mesh& mesh = engine.mesh();
  const int64_t count = all.window_count(), in_round = batch_size * mesh.world_size();
  const bool collects = mesh.rank() == 0;
  // One row length for all rounds: the longest window, which every rank computes itself.
  LogitSizes sizes{.types = model->classifier ? model->classifier->options.out_features() : 0};
  for (int64_t window = 0; window < count; ++window) {
    sizes.row = std::max(sizes.row, all.window_length(window));
  }
  std::vector<WindowLogits> logits(collects ? count : 0);
  terminal::StatusLine progress(evaluation.console, "answering", count, count);
  const auto round_of = [&](int64_t begin) {
    return Round{.begin = begin, .count = count, .batch_size = batch_size};
  };
  fsdp::BatchTransfer<Batch> batches(engine, (count + in_round - 1) / in_round, [&](int64_t index) {
    const Round round = round_of(index * in_round);
    return make_tensors(make_batch(all, round.windows_of(mesh.rank())));
  });
  for (int64_t begin = 0; begin < count; begin += in_round) {
    if (evaluation.must_stop()) return std::nullopt;
    const Round round = round_of(begin);
    const size_t mine = round.windows_of(mesh.rank()).size();
    const std::vector<float> gathered =
        mesh.gather(run_batch(model, batches.next(), mine, batch_size, sizes), "logits");
    for (int rank = 0; collects && rank < mesh.world_size(); ++rank) {
      take_logits(gathered.data() + rank * batch_size * sizes.of_window(), all,
                  round.windows_of(rank), sizes, logits);
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
      run_windows(model, engine, questions.windows(), settings.eval_batch_size, evaluation);
  if (!logits) return std::nullopt;
  Answered answered;
  // The other ranks wait here while rank 0 decodes. In a collective their wait would time out.
  fsdp::run_or_throw_on_all_ranks(engine.mesh(), "choosing the answers", [&] {
    if (engine.mesh().rank() != 0) return;
    answered.answers = questions.decode(*logits);
  });
  answered.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return answered;
}

}  // namespace bert_qa

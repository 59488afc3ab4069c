#include "bert_qa/tests/support/qa_cases.h"

#include "bert_qa/tests/support/records.h"

namespace bert_qa {
namespace {

uint64_t splitmix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

float logit(int64_t window, int64_t token, int64_t side) {
  const uint64_t hash = splitmix(static_cast<uint64_t>((window * 1024 + token) * 2 + side));
  return static_cast<float>(static_cast<double>(hash >> 40) / (1 << 20) - 8.0);
}

}  // namespace

const WordPieceTokenizer& uncased_tokenizer() {
  static const WordPieceTokenizer tokenizer(
      WordPieceVocab::read(example_file("bert-base-uncased-vocab.txt")));
  return tokenizer;
}

QaDataset recorded_questions(const std::string& file, bool version_2) {
  QaDataset dataset = read_squad(example_file(file));
  if (!version_2) return dataset;
  for (size_t i = 2; i < dataset.questions.size(); i += 3) dataset.questions[i].answers.clear();
  return dataset;
}

std::vector<WindowLogits> recorded_logits(const QaFeatures& features) {
  std::vector<WindowLogits> logits(features.window_count());
  for (int64_t window = 0; window < features.window_count(); ++window) {
    WindowLogits& one = logits[window];
    for (int64_t token = 0; token < features.window_length(window); ++token) {
      one.start.push_back(logit(window, token, 0));
      one.end.push_back(logit(window, token, 1));
    }
    if (window % 3 == 0) continue;
    one.start[features.window(window).start_position] += 12.0F;
    one.end[features.window(window).end_position] += 12.0F;
  }
  return logits;
}

}  // namespace bert_qa

#include "bert_qa/tests/support/text_readers.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bert_qa/hf/tokenizer_folder.h"
#include "bert_qa/squad/qa_features.h"
#include "bert_qa/text/unicode_text.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "bert_qa/text/wordpiece_trie.h"
#include "bert_qa/windows/qa_batch.h"
#include "support/byte_reader.h"

namespace bert_qa {
namespace {

const char* const kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##a\n##b\nab\n##ab\nA\n##B\ne\né\n##é\ni\n##\u0307\n"
    "北\n京\n.\n,\n-\n[\n]\nsep\n가\n\u1100\n##\u1161\n\u302e\n\u0327\n##\u0301\n1\n##9\nß\nσ\nς\n"
    "the\n##ing\nun\n##aff\n##able\n\U0001f600\n##\n#\n";

// Returns one of four tokenizers. Each is built only once.
const WordPieceTokenizer& tokenizer_of(unsigned choice) {
  static std::array<std::unique_ptr<WordPieceTokenizer>, 4> tokenizers;
  choice %= tokenizers.size();
  auto& tokenizer = tokenizers[choice];
  if (!tokenizer) {
    TokenizerOptions options{.do_lower_case = (choice & 1) == 0,
                             .tokenize_chinese_chars = choice != 3};
    if ((choice & 2) != 0) options.strip_accents = !options.do_lower_case;
    tokenizer =
        std::make_unique<WordPieceTokenizer>(WordPieceVocab::parse(kVocabulary, "v"), options);
  }
  return *tokenizer;
}

void check_list(const WordPieceTokenizer& tokenizer, std::string_view text,
                const TokenList& tokens) {
  fsdp::demand(tokens.ids.size() == tokens.spans.size(), "ids without spans");
  const int64_t end = count_code_points(text);
  int32_t last = 0;
  for (int64_t i = 0; i < tokens.size(); ++i) {
    fsdp::demand(tokens.ids[i] >= 0 && tokens.ids[i] < tokenizer.vocab().size(),
                 "an id of no token");
    const auto [first, past] = tokens.spans[i];
    fsdp::demand(first >= last && first < past && past <= end,
                 "a span out of order or out of the text");
    last = first;
  }
}

// Checks that the tokens of a joined text are the tokens of its parts. No word, sequence of marks
// or special token extends over a space.
void check_joined(const WordPieceTokenizer& tokenizer, std::string_view text,
                  const TokenList& tokens) {
  const std::string before(text.substr(text.size() / 2));
  TokenList joined = tokenizer.tokenize(before + " " + std::string(text));
  TokenList expected = tokenizer.tokenize(before);
  const auto shift = static_cast<int32_t>(count_code_points(before)) + 1;
  for (int64_t i = 0; i < tokens.size(); ++i) {
    expected.ids.push_back(tokens.ids[i]);
    expected.spans.push_back({tokens.spans[i].begin + shift, tokens.spans[i].end + shift});
  }
  fsdp::demand(joined.ids == expected.ids && joined.spans == expected.spans,
               "a text whose tokens depend on what stands before the space in front of it");
}

}  // namespace

void check_vocabulary(const WordPieceVocab& vocab) {
  for (const bool fold : {false, true}) {
    const WordPieceTrie trie(vocab, fold);
    for (int64_t id = 0; id < vocab.size(); ++id) {
      std::string_view token = vocab.token(id);
      fsdp::demand(vocab.find(token) == id, "a token that is not found by its name");
      const bool capital =
          std::any_of(token.begin(), token.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
      int32_t node = WordPieceTrie::kWordRoot;
      if (token.starts_with("##")) {
        node = WordPieceTrie::kContinuationRoot;
        token.remove_prefix(2);
      }
      if (token.empty() || (fold && capital)) continue;
      for (const char c : token) {
        node = node < 0 ? node : trie.child(node, static_cast<uint8_t>(c));
      }
      fsdp::demand(node >= 0 && trie.token(node) == id, "a token that is not found by its piece");
    }
  }
  const WordPieceVocab copy = WordPieceVocab::parse(format_vocab(vocab), "copy");
  fsdp::demand(copy.size() == vocab.size(),
               "a vocabulary that changes its size when it is written");
  for (int64_t id = 0; id < vocab.size(); ++id) {
    fsdp::demand(copy.token(id) == vocab.token(id), "a token that changes when it is written");
  }
}

void check_tokens(std::string_view bytes) {
  if (bytes.empty()) return;
  const WordPieceTokenizer& tokenizer = tokenizer_of(static_cast<uint8_t>(bytes[0]));
  const std::string_view text = bytes.substr(1);
  const TokenList tokens = tokenizer.tokenize(text);
  check_list(tokenizer, text, tokens);
  check_joined(tokenizer, text, tokens);
}

void check_windows(const QaDataset& dataset) {
  constexpr int64_t kLength = 24;
  const QaFeatures features(dataset, tokenizer_of(0), {.max_seq_length = kLength, .doc_stride = 4});
  fsdp::demand(features.question_count() == std::ssize(dataset.questions),
               "questions without features");
  std::vector<int64_t> windows(std::min<int64_t>(features.window_count(), 64));
  std::iota(windows.begin(), windows.end(), 0);
  for (const int64_t i : windows) {
    const QaWindow& window = features.window(i);
    const int64_t length = features.window_length(i);
    fsdp::demand(length <= kLength, "a window that is too long");
    fsdp::demand(window.start_position >= 0 && window.end_position < length,
                 "a label out of the window");
  }
  const QaBatch batch = make_batch(features, windows);
  fsdp::demand(batch.rows == std::ssize(windows), "a batch with other rows");
}

}  // namespace bert_qa

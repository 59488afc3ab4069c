// Converts records of Natural Questions to the token windows that a BERT reads: [CLS] [Q] question
// [SEP] contexts [SEP].
//
// Windows and labels are those of the baseline of Alberti et al. 2019
// (google-research/language/question_answering/bert_joint). The contexts are [ContextId=-1]
// [NoLongAnswer], then each top-level candidate with text, behind its index and its position among
// candidates of its kind, such as [ContextId=7] [Paragraph=3]. A question keeps its last tokens. In
// training, a window that does not hold the whole answer has the type kUnknown and the label (0,
// 0), and only a random part of these windows is kept. There are two differences. If an answer is
// annotated outside of top-level candidates, its words are labelled where they are among the
// contexts, otherwise its windows are kUnknown; the baseline labels other words. A short answer
// without text counts as no short answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bert_qa/nq/answer_type.h"
#include "bert_qa/nq/nq_record.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "bert_qa/windows/qa_batch.h"

namespace bert_qa {

// The options for the windows, in tokens.
struct NqFeatureOptions {
  int64_t max_seq_length = 512;
  int64_t doc_stride = 128;  // distance between the starts of neighbouring windows
  int64_t max_query_length = 64;
  int64_t max_contexts = 48;
  // Labels windows, and keeps windows of type kUnknown with the probability include_unknowns.
  // Otherwise all windows are kept without labels.
  bool for_training = false;
  double include_unknowns = 0.02;
  uint64_t seed = 42;  // of the choice of windows
};

// Tokens of a page, with the number of each token's word in the document. Tokens that are not of
// the document have the number -1.
struct NqContexts {
  std::vector<int32_t> ids;
  std::vector<int32_t> words;
};

// The answer of the first annotation, in tokens of NqContexts.
struct NqLabel {
  AnswerType type = AnswerType::kUnknown;
  int64_t first = 0, last = 0;
};

// A window: a question and a range of the contexts of its page.
struct NqWindow {
  int32_t question = 0;
  int64_t context_begin = 0;  // index in all stored tokens
  int32_t context_count = 0;
  int32_t start_position = 0;  // index in the window; [CLS] is 0
  int32_t end_position = 0;    // last token of the answer
  AnswerType type = AnswerType::kUnknown;
};

// The windows of the records that were added. Only tokens of windows that are kept are stored, once
// for all windows of a record.
class NqFeatures final : public Windows {
 public:
  // Requires: the tokenizer outlives this object; its vocabulary has the baseline's tokens
  //   (nq_vocab.h), otherwise they are [UNK].
  // Errors: InvalidArgument if windows have no room for a question and its context.
  NqFeatures(const WordPieceTokenizer& tokenizer, const NqFeatureOptions& options);

  // Adds the windows of a record. Not thread-safe.
  void add(const NqRecord& record);

  int64_t window_count() const override { return static_cast<int64_t>(windows_.size()); }
  int64_t window_length(int64_t index) const override;
  void write_row(int64_t index, QaBatch& batch, int64_t row) const override;

  int64_t question_count() const { return static_cast<int64_t>(first_window_.size()) - 1; }
  const NqWindow& window(int64_t index) const { return windows_[index]; }
  // Returns the first window of a question. The windows of question q are [first_window(q),
  // first_window(q + 1)).
  int64_t first_window(int64_t question) const { return first_window_[question]; }
  // Returns the number of the document's word at a position of a window, or -1 for other tokens.
  // Requires: the windows are not for training.
  int64_t word_at(int64_t index, int64_t position) const;
  // Returns the text of words [begin, end) of a question's page, joined from its tokens. Words that
  // are in no window are left out. Requires: the windows are not for training.
  std::string text(int64_t question, int64_t begin, int64_t end) const;

 private:
  // A record while it is added.
  struct Current {
    NqContexts contexts;
    NqLabel label;
    int64_t stored_end = 0;  // its stored tokens end at this token of its contexts
  };

  int64_t question_tokens(int64_t question) const {
    return question_begin_[question + 1] - question_begin_[question];
  }
  void add_question(std::string_view question);
  void label(const NqLabel& answer, int64_t begin, NqWindow& window) const;
  void store(Current& current, int64_t begin, NqWindow& window);

  const WordPieceTokenizer& tokenizer_;
  const NqFeatureOptions options_;
  std::vector<int32_t> question_ids_;
  std::vector<int64_t> question_begin_ = {0};
  NqContexts stored_;  // without words in training
  std::vector<NqWindow> windows_;
  std::vector<int64_t> first_window_ = {0};
};

// Returns the contexts of a record.
NqContexts nq_contexts(const NqRecord& record, const WordPieceTokenizer& tokenizer,
                       int64_t max_contexts);

// Returns the answer of the first annotation with a short answer, else of the first one with a long
// answer. Annotations are in the order of their candidates. Short answers are labelled as one
// answer, from the first token to the last.
NqLabel nq_label(const NqRecord& record, const NqContexts& contexts);

}  // namespace bert_qa

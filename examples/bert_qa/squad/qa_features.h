// Converts questions and contexts to the token windows that a BERT reads: [CLS] question [SEP]
// context [SEP].
//
// As in Hugging Face's run_qa.py, leading white space of a question is removed and a question is
// never cut. A context that does not fit is cut into windows that overlap by doc_stride tokens. If
// a window does not hold the whole answer, its label is (0, 0). There is one difference. If an
// answer begins in the last context token of a window, the label is that token. run_qa.py continues
// to the end of the row, because special tokens have offset 0.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "bert_qa/windows/qa_batch.h"

namespace bert_qa {

// The options for the windows, in tokens.
struct FeatureOptions {
  int64_t max_seq_length = 384;
  int64_t doc_stride = 128;
};

// A window: a question and a range of tokens of its context.
struct QaWindow {
  int32_t question = 0;       // index into the data set's questions
  int32_t context_begin = 0;  // index of its first context token in the whole context
  int32_t context_count = 0;
  int32_t start_position = 0;  // index in the window; [CLS] is 0
  int32_t end_position = 0;    // last token of the answer
};

// Removes questions that leave no space for their context, because QaFeatures would refuse them.
// Adds them to the skipped rows.
void leave_out_long_questions(QaDataset& dataset, const WordPieceTokenizer& tokenizer,
                              const FeatureOptions& options = {});

// The windows of a data set. Token ids are stored once for each text, not for each window. The
// object is immutable and does not refer to the data set or the tokenizer.
class QaFeatures final : public Windows {
 public:
  // Errors: InvalidArgument if a context must be cut and its question leaves space for doc_stride
  //   or fewer tokens.
  QaFeatures(const QaDataset& dataset, const WordPieceTokenizer& tokenizer,
             const FeatureOptions& options = {});

  int64_t window_count() const override { return static_cast<int64_t>(windows_.size()); }
  int64_t question_count() const { return static_cast<int64_t>(context_of_.size()); }
  const QaWindow& window(int64_t index) const { return windows_[index]; }
  int64_t window_length(int64_t index) const override;
  // Returns the position of a window's first context token: 2 + tokens of the question.
  int64_t context_position(int64_t index) const;
  // Returns the first window of a question. The windows of question q are [first_window(q),
  // first_window(q + 1)).
  int64_t first_window(int64_t question) const { return first_window_[question]; }

  void write_row(int64_t index, QaBatch& batch, int64_t row) const override;

  // Returns the code points of the context that a token of a window covers, or nothing if the token
  // is outside the context.
  std::optional<TokenSpan> context_span(int64_t index, int64_t token) const;

 private:
  // The tokens of all texts of one kind in one array.
  struct Texts {
    std::vector<int32_t> ids;
    std::vector<TokenSpan> spans;
    std::vector<int64_t> begin = {0};  // begin of each text, then the end of the last text

    void add(const TokenList& tokens, bool with_spans);
    int64_t count(int64_t text) const { return begin[text + 1] - begin[text]; }
  };

  void add_windows(const QaQuestion& question, int32_t index, const FeatureOptions& options);
  void label(const QaAnswer& answer, QaWindow& window) const;
  std::span<const TokenSpan> context_spans(const QaWindow& window) const;

  Texts questions_;
  Texts contexts_;
  std::vector<int32_t> context_of_;  // context of each question
  std::vector<QaWindow> windows_;
  std::vector<int64_t> first_window_;
  int32_t cls_id_, sep_id_, pad_id_;
};

}  // namespace bert_qa

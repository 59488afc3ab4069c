#include "bert_qa/tests/support/nq_cases.h"

#include "bert_qa/nq/nq_reader.h"
#include "bert_qa/nq/nq_vocab.h"
#include "bert_qa/tests/support/qa_cases.h"
#include "bert_qa/tests/support/records.h"

namespace bert_qa {

const WordPieceTokenizer& nq_tokenizer() {
  static const WordPieceTokenizer tokenizer = [] {
    std::vector<std::string> notes;
    return WordPieceTokenizer(with_nq_tokens(uncased_tokenizer().vocab(), notes));
  }();
  return tokenizer;
}

std::vector<NqRecord> recorded_nq_records() {
  constexpr size_t kMade = 60;
  std::vector<NqRecord> records;
  NqRecord record;
  NqReader gold(record_file("nq_eval/gold.jsonl"), {});
  while (gold.next(record)) records.push_back(record);
  NqReader made(example_file("nq-dev.jsonl.gz"), {});
  for (size_t i = 0; i < kMade && made.next(record); ++i) records.push_back(record);
  return records;
}

}  // namespace bert_qa

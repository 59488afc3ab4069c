// Makes the same data as tests/nq/record_nq_windows.py.
#pragma once

#include <string>
#include <vector>

#include "bert_qa/nq/nq_record.h"
#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// Returns the uncased tokenizer with the tokens of Natural Questions. It is built only once.
const WordPieceTokenizer& nq_tokenizer();

// Returns the records of records/nq_eval/gold.jsonl, then the first 60 of data/nq-dev.jsonl.gz.
std::vector<NqRecord> recorded_nq_records();

}  // namespace bert_qa

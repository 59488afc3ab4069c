// Makes the same data as tests/squad/record_qa.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bert_qa/squad/qa_decoding.h"
#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// Returns a tokenizer with the real uncased vocabulary. It is built only once.
const WordPieceTokenizer& uncased_tokenizer();

// A 32-bit-wise FNV-1a hash.
inline constexpr uint64_t kHashStart = 0xCBF29CE484222325;
inline uint64_t add_to_hash(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint32_t>(value)) * 0x100000001B3;
}

// Returns the recorded questions. If `version_2`, every third question has no answer.
QaDataset recorded_questions(const std::string& file, bool version_2 = false);

// Returns logits that are a hash of window, token and side. In two of three windows the label has a
// higher value.
std::vector<WindowLogits> recorded_logits(const QaFeatures& features);

}  // namespace bert_qa

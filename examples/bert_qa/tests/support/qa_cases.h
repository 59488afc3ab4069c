// The data that tests/squad/record_qa.py works on, made again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bert_qa/squad/qa_decoding.h"
#include "bert_qa/squad/qa_features.h"
#include "bert_qa/squad/squad_dataset.h"
#include "bert_qa/text/wordpiece_tokenizer.h"

namespace bert_qa {

// The real uncased vocabulary; built once.
const WordPieceTokenizer& uncased_tokenizer();

// FNV-1a over 32-bit values.
inline constexpr uint64_t kHashStart = 0xCBF29CE484222325;
inline uint64_t add_to_hash(uint64_t hash, int64_t value) {
  return (hash ^ static_cast<uint32_t>(value)) * 0x100000001B3;
}

// With `version_2` every third question loses its answer.
QaDataset recorded_questions(const std::string& file, bool version_2 = false);

// A hash of window, token and side; two windows of three favour their label.
std::vector<WindowLogits> recorded_logits(const QaFeatures& features);

}  // namespace bert_qa

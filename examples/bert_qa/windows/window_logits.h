// Holds a model's results for one window.
#pragma once

#include <vector>

namespace bert_qa {

// The logits of a window, one for each token. Further logits belong to padding. They are never
// part of an answer, but in SQuAD they compete for the n best positions.
struct WindowLogits {
  std::vector<float> start;
  std::vector<float> end;
  std::vector<float> types{};  // one for each answer type; empty without an answer-type head
};

}  // namespace bert_qa

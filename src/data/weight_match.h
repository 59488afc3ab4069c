// Finds each of a BERT's parameters among the tensors of a file, under any of the names in use.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/model_folder.h"

namespace fsdp {

struct ExpectedTensor {
  std::string name;  // "bert.encoder.layer.0.…", "qa_outputs.weight"
  std::vector<int64_t> shape;
  bool may_be_missing = false;  // a head: the model keeps its initial values
};

struct MatchedWeights {
  // One for each expected tensor, in their order; empty only where it may be missing.
  std::vector<std::optional<TensorSource>> sources;
  // What was renamed, dropped or left at its initial values: to be told once.
  std::vector<std::string> notes;
};

// The name that today's models have for a tensor: with `bert.` before an encoder's own names, and
// LayerNorm.weight and .bias where older files say gamma and beta.
std::string current_name(std::string_view stored);

// Rules: `cls.*`, `bert.pooler.*` and `bert.embeddings.position_ids` are dropped where they are not
// expected; a module whose parameters may be missing is there as a whole or not at all; tensors of
// `head` (may be null) come before the folder's. All ranks get the same answer.
// Errors: IoError kCorruptData with the names for any other missing or unexpected tensor, for a
//         shape that differs, a type that is no F32, F16, BF16 or F64, and for two tensors that
//         mean the same parameter.
MatchedWeights match_weights(const ModelFolder& folder, std::span<const ExpectedTensor> expected,
                             const SafetensorsFile* head = nullptr);

}  // namespace fsdp

// What a run reads before any rank starts to work; the questions follow (questions.h).
#pragma once

#include <fsdp/safetensors.h>
#include <fsdp/stored_weights.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bert_qa/run/settings.h"
#include "bert_qa/text/wordpiece_tokenizer.h"
#include "models/bert/config.h"

namespace bert_qa {

struct Inputs {
  bert::Config config;
  std::unique_ptr<fsdp::StoredWeights> weights;  // null for a preset
  std::optional<fsdp::SafetensorsFile> head;
  std::optional<WordPieceTokenizer> tokenizer;  // empty for synthetic data
  std::vector<std::string> notes;               // to be told once
};

// Errors: IoError and InvalidArgument naming the file and what is wrong with it.
Inputs read_inputs(const Settings& settings);

}  // namespace bert_qa

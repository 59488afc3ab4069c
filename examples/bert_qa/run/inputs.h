// Reads the files that all ranks need first. questions.h reads the questions later.
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

// The model's files.
struct Inputs {
  bert::Config config;
  std::unique_ptr<fsdp::StoredWeights> weights;  // null for a preset
  std::optional<fsdp::SafetensorsFile> head;
  std::optional<WordPieceTokenizer> tokenizer;  // empty for synthetic data
  std::vector<std::string> notes;               // for the user
};

// Reads the inputs. Throws IoError or InvalidArgument; the message names the file and what is wrong
// with it.
Inputs read_inputs(const Settings& settings);

}  // namespace bert_qa

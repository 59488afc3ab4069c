// Reads the files of a run that all ranks need first; the questions follow (questions.h).
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

// Reads the inputs. Errors: IoError and InvalidArgument with the file and its fault.
Inputs read_inputs(const Settings& settings);

}  // namespace bert_qa

// What a run reads before any rank starts to work; the questions follow (questions.h).
#pragma once

#include <fsdp/data.h>

#include <optional>
#include <string>
#include <vector>

#include "data/model_folder.h"
#include "data/wordpiece_tokenizer.h"
#include "settings.h"

namespace bert_qa {

struct Inputs {
  fsdp::ModelConfig config;
  std::optional<fsdp::ModelFolder> folder;  // empty for a preset
  std::optional<fsdp::SafetensorsFile> head;
  std::optional<fsdp::WordPieceTokenizer> tokenizer;  // empty for synthetic data
  std::vector<std::string> notes;                     // to be told once
};

// Errors: IoError and InvalidArgument naming the file and what is wrong with it.
Inputs read_inputs(const Settings& settings);

}  // namespace bert_qa

#include "bert_qa/run/inputs.h"

#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/whole_file.h>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/model_sizes.h"
#include "bert_qa/hf/tokenizer_folder.h"
#include "bert_qa/nq/answer_type.h"
#include "bert_qa/nq/nq_vocab.h"
#include "models/bert/presets.h"

namespace bert_qa {
namespace {

// Embeddings are often padded to a multiple of 8, 64 or 128 rows for each part. If the vocabulary
// lacks more tokens than this, it was cut off or belongs to another model. It would then give wrong
// answers without an error.
constexpr int64_t kMaxUnusedRows = 1024;
// The number of segments in a window: the question is segment 0, the context is segment 1.
constexpr int64_t kSegments = 2;

void check_vocabulary(const ModelSource& source, Inputs& inputs) {
  const int64_t tokens = inputs.tokenizer->vocab().size(), rows = inputs.config.vocab_size;
  if (tokens > rows || rows - tokens > kMaxUnusedRows) {
    throw fsdp::IoError(
        fsdp::ExitCode::kCorruptData,
        {.what = fmt::format("the vocabulary has {} tokens, the model {}{} embeddings", tokens,
                             tokens > rows ? "only " : "", rows),
         .where = source.vocab_file.empty() ? source.folder.string() : source.vocab_file.string(),
         .hint = "use the model's vocab.txt"});
  }
  if (tokens < rows) {
    inputs.notes.push_back(
        fmt::format("the vocabulary has {} tokens, the model {} embeddings: the rest is padding",
                    tokens, rows));
  }
}

// Checks that the command line fits the model's sizes.
void check_fit(const Settings& settings, Inputs& inputs) {
  const int64_t positions = inputs.config.max_position_embeddings;
  if (settings.data.max_seq_length > positions) {
    throw fsdp::InvalidArgument(
        {.what = fmt::format("--max-seq-length {} is more than the model's {} positions",
                             settings.data.max_seq_length, positions),
         .hint = fmt::format("use --max-seq-length {}", positions)},
        fsdp::ExitCode::kUsage);
  }
  if (inputs.tokenizer) check_vocabulary(settings.model, inputs);
}

bert::Config read_config(const std::filesystem::path& file) {
  bert::Config config = read_model_config(file);
  if (config.type_vocab_size < kSegments) {
    throw fsdp::InvalidArgument(
        {.what = "type_vocab_size is 1, expected 2: one for the question, one for the context",
         .where = file.string(),
         .hint = "use a BERT with two token types"});
  }
  return config;
}

void set_task(Task task, bert::Config& config) {
  config.answer_types = task == Task::kNq ? kAnswerTypes : 0;
  config.architectures = {fmt::format("{}BertFor{}", config.model_type == "bert" ? "" : "Megatron",
                                      task == Task::kNq ? kNaturalQuestions : "QuestionAnswering")};
}

void read_model(const Settings& settings, Inputs& inputs) {
  const ModelSource& source = settings.model;
  if (source.preset.empty()) {
    inputs.weights = std::make_unique<fsdp::StoredWeights>(source.folder);
    inputs.config = read_config(source.folder / "config.json");
    check_sizes(inputs.config, *inputs.weights);
  } else {
    inputs.config = bert::preset_config(source.preset);
  }
  set_task(settings.task, inputs.config);
  if (source.dropout) {
    inputs.config.hidden_dropout_prob = *source.dropout;
    inputs.config.attention_probs_dropout_prob = *source.dropout;
  }
  if (!source.qa_head.empty()) inputs.head.emplace(source.qa_head);
}

// Returns the folder whose tokenizer_config.json applies. It is the folder of the model, if it has
// one, because the weights depend on whether text is lower-cased. Otherwise it is the folder of
// --vocab-file.
std::filesystem::path tokenizer_folder(const ModelSource& source, std::vector<std::string>& notes) {
  if (source.vocab_file.empty()) return source.folder;
  const std::filesystem::path beside =
      source.vocab_file.has_parent_path() ? source.vocab_file.parent_path() : ".";
  const bool of_model = !source.folder.empty() && has_tokenizer_config(source.folder);
  const bool of_vocab = has_tokenizer_config(beside);
  if (!of_model) return of_vocab || source.folder.empty() ? beside : source.folder;
  std::error_code ignored;
  if (of_vocab && !std::filesystem::equivalent(beside, source.folder, ignored)) {
    notes.push_back(fmt::format("the tokenizer uses the settings of {}, not of {}",
                                (source.folder / "tokenizer_config.json").string(),
                                (beside / "tokenizer_config.json").string()));
  }
  return source.folder;
}

void read_vocabulary(const Settings& settings, Inputs& inputs) {
  const ModelSource& source = settings.model;
  const std::filesystem::path folder = tokenizer_folder(source, inputs.notes);
  WordPieceTokenizer tokenizer = read_tokenizer(folder, inputs.notes, source.vocab_file);
  if (settings.task == Task::kNq) {
    tokenizer =
        WordPieceTokenizer(with_nq_tokens(tokenizer.vocab(), inputs.notes), tokenizer.options());
  }
  inputs.tokenizer.emplace(std::move(tokenizer));
  // With random weights the vocabulary decides the size of the embedding; stored weights have one.
  if (inputs.weights) return;
  inputs.config.vocab_size = inputs.tokenizer->vocab().size();
  inputs.config.pad_token_id = inputs.tokenizer->vocab().pad_id();
}

}  // namespace

Inputs read_inputs(const Settings& settings) {
  Inputs inputs;
  read_model(settings, inputs);
  if (settings.data.source == DataSource::kFiles) {
    read_vocabulary(settings, inputs);
    check_fit(settings, inputs);
    // The files are only opened here, as a check. They are read while the model is built.
    for (const auto& file : {settings.data.train_file, settings.data.validation_file}) {
      if (!file.empty()) fsdp::require_readable(file);
    }
  } else {
    check_fit(settings, inputs);
  }
  return inputs;
}

}  // namespace bert_qa

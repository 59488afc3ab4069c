// Holds the settings of a run: the checked command line.
#pragma once

#include <fsdp/rates.h>
#include <fsdp/run_options.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace bert_qa {

enum class Command : uint8_t { kInit, kFinetune, kPredict, kEvaluate };
enum class Task : uint8_t { kSquad, kNq };
enum class DataSource : uint8_t { kFiles, kSynthetic, kLearnable };

// The source of the model.
struct ModelSource {
  std::filesystem::path folder;      // a Hugging Face folder; empty: use the preset
  std::string preset;                // size of a model with random weights
  std::filesystem::path vocab_file;  // required for a preset with files; otherwise the folder's
  std::filesystem::path qa_head;     // a safetensors file with qa_outputs.weight and .bias
  std::optional<double> dropout;     // replaces the value of the configuration
};

struct DataSettings {
  DataSource source = DataSource::kFiles;
  std::filesystem::path train_file, validation_file;
  int64_t max_seq_length = 384;
  int64_t doc_stride = 128;
  int64_t max_train_samples = -1;  // questions; negative: all
  int64_t max_eval_samples = -1;
  bool skip_bad_rows = false;
  // For Natural Questions.
  int64_t max_query_length = 64;
  int64_t max_contexts = 48;
  double include_unknowns = 0.02;
  bool shuffle = true;
  bool drop_last = false;
};

struct TrainSettings {
  int64_t train_batch_size = 8;  // windows of one rank in one micro-batch
  int64_t accumulation_steps = 1;
  double num_epochs = 3.0;
  int64_t max_steps = -1;        // negative: the epochs decide
  int64_t stop_after_step = -1;  // ends early; schedule of the whole run; negative: never
  double learning_rate = 5e-5;
  double weight_decay = 0.0;
  std::string optim = "adamw_torch";  // a name of named_optimizer.h
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  bool bias_correction = true;
  double max_grad_norm = 1.0;
  int64_t logging_steps = 50;
};

struct AnswerSettings {
  int64_t eval_batch_size = 8;
  bool version_2 = false;
  double null_score_diff_threshold = 0.0;
  int64_t n_best_size = 20;
  int64_t max_answer_length = 30;
  int64_t long_non_null_threshold = 2, short_non_null_threshold = 2;  // for Natural Questions
};

struct Settings {
  Command command = Command::kFinetune;
  Task task = Task::kSquad;
  ModelSource model;
  DataSettings data;
  TrainSettings train;
  AnswerSettings answers;
  std::filesystem::path output_dir;
  bool overwrite_output_dir = false;        // permits to replace an earlier run's results
  int64_t max_shard_bytes = 5'000'000'000;  // largest file of the written model
  uint64_t seed = 42;
  int64_t num_threads = 0;           // of one rank; 0: cores divided by the host's ranks
  std::optional<fsdp::Rates> rates;  // set: the time of a step is predicted
  fsdp::RunOptions run;

  bool says_all() const { return run.log_level == fsdp::LogLevel::kDebug; }
  // Returns true if finetune only measures times without communication. It then writes no model and
  // no answers.
  bool ablated() const { return run.ablate_communication; }
  bool writes_model() const {
    return command == Command::kInit || (command == Command::kFinetune && !ablated());
  }
};

}  // namespace bert_qa

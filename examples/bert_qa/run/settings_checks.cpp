#include "bert_qa/run/settings_checks.h"

#include <fsdp/error.h>

#include <string_view>
#include <utility>
#include <vector>

#include "bert_qa/run/scoring.h"
#include "models/bert/presets.h"

namespace bert_qa {
namespace {

constexpr int64_t kNqSpecialTokens = 3;  // [CLS], [SEP], [SEP]

// Sets the metric of --eval-strategy.
void resolve_evaluation(Settings& settings) {
  fsdp::EvaluationOptions& evaluation = settings.run.evaluation;
  const std::vector<std::string_view> metrics = metrics_of(settings);
  if (evaluation.strategy == fsdp::EvalStrategy::kNo) {
    return evaluation.resolve(metric_names(settings.task));
  }
  if (metrics.empty()) {
    refuse("--eval-strategy has no questions", "add --validation-file FILE or --data learnable");
  }
  if (settings.ablated()) {
    refuse("a run without communication is not evaluated", "leave out --ablate or --eval-strategy");
  }
  evaluation.resolve(metrics);
}

void check_init(const Settings& settings) {
  if (settings.model.preset.empty()) {
    refuse("no model size is given", "add --preset NAME: " + bert::preset_names());
  }
  if (settings.model.vocab_file.empty()) refuse("no vocabulary is given", "add --vocab-file FILE");
  if (settings.output_dir.empty()) refuse("no output folder is given", "add --output-dir DIR");
}

}  // namespace

void refuse(std::string what, std::string hint) {
  throw fsdp::InvalidArgument({.what = std::move(what), .hint = std::move(hint)},
                              fsdp::ExitCode::kUsage);
}

void check_settings(Settings& settings) {
  if (settings.command == Command::kInit) return check_init(settings);
  const bool files = settings.data.source == DataSource::kFiles;
  const bool finetune = settings.command == Command::kFinetune;
  if (settings.model.folder.empty() && settings.model.preset.empty()) {
    refuse("no model is given", "add --model DIR, or --preset NAME for random weights");
  }
  if (!settings.model.preset.empty() && files && settings.model.vocab_file.empty()) {
    refuse("--preset has no vocabulary", "add --vocab-file FILE");
  }
  if (files && finetune && settings.data.train_file.empty()) {
    refuse("no training data is given", "add --train-file FILE or --data synthetic");
  }
  if (files && !finetune && settings.data.validation_file.empty()) {
    refuse("no questions are given", "add --validation-file FILE");
  }
  const bool nq = settings.task == Task::kNq;
  if (files && !nq && settings.data.doc_stride >= settings.data.max_seq_length) {
    refuse("--doc-stride must be smaller than --max-seq-length",
           "lower --doc-stride (defaults: 128 and 384)");
  }
  if (files && nq &&
      settings.data.max_query_length + kNqSpecialTokens >= settings.data.max_seq_length) {
    refuse("--max-query-length leaves no room for the document",
           "lower --max-query-length (default: 64) or raise --max-seq-length");
  }
  if (files && nq && settings.data.doc_stride == 0) {
    refuse("--doc-stride must be 1 or more with --task nq", "use --doc-stride 128");
  }
  if (!files && !(settings.data.train_file.empty() && settings.data.validation_file.empty())) {
    refuse("synthetic data reads no file", "leave --train-file and --validation-file out");
  }
  if (settings.command != Command::kEvaluate && settings.output_dir.empty()) {
    refuse("no output folder is given", "add --output-dir DIR");
  }
  if (finetune && settings.run.engine.optimizer_in_backward && settings.train.max_grad_norm > 0) {
    refuse("--optimizer-in-backward cannot clip gradients", "add --max-grad-norm 0");
  }
  settings.run.schedule.require_valid(settings.train.learning_rate);
  settings.run.reports.event_folder(settings.output_dir);
  const fsdp::CheckpointOptions& checkpoints = settings.run.checkpoints;
  const bool resumes = !checkpoints.resume.empty() && checkpoints.resume != "none";
  if (settings.ablated() &&
      (resumes || checkpoints.save_steps > 0 || !checkpoints.folder.empty())) {
    refuse("a run without communication has no checkpoints",
           "leave out --ablate, or --save-steps, --save-dir and --resume");
  }
  if (settings.rates && settings.train.accumulation_steps > 1) {
    refuse("--time is set, but a step has several micro-batches, and the plan has one",
           "leave out --time or --gradient-accumulation-steps");
  }
  if (settings.rates && settings.ablated()) {
    refuse("--time predicts a step with communication, but --ablate leaves it out",
           "leave out one of them");
  }
  if (finetune) resolve_evaluation(settings);
}

}  // namespace bert_qa

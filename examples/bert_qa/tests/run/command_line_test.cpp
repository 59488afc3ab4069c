#include "bert_qa/run/command_line.h"

#include <fsdp/error.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "support/torch_doctest.h"

using namespace bert_qa;

namespace {

Settings parse(std::vector<const char*> words) {
  words.insert(words.begin(), "bert_qa");
  return parse_command_line(static_cast<int>(words.size()), words.data()).settings;
}

}  // namespace

TEST_CASE("flags may be spelled with hyphens or underscores; values are left alone") {
  for (const auto& words : {std::vector<const char*>{"finetune", "--model", "a_b", "--train-file",
                                                     "c_d", "--output-dir=e_f", "--no-shuffle"},
                            {"finetune", "--model_name_or_path", "a_b", "--train_file=c_d",
                             "--output_dir", "e_f", "--no_shuffle"}}) {
    const Settings settings = parse(words);
    CHECK(settings.model.folder == "a_b");
    CHECK(settings.data.train_file == "c_d");
    CHECK(settings.output_dir == "e_f");
    CHECK_FALSE(settings.data.shuffle);
  }
}

TEST_CASE("defaults are run_qa.py's; the google recipe changes what was not given") {
  const std::vector<const char*> words = {"finetune", "--model",      "m", "--train-file",
                                          "t",        "--output-dir", "o"};
  CHECK(parse(words).run.schedule.warmup_ratio == 0.0);
  const TrainSettings hf = parse(words).train;
  CHECK(hf.train_batch_size == 8);
  CHECK(hf.learning_rate == 5e-5);
  CHECK(hf.adam_epsilon == 1e-8);
  CHECK(hf.weight_decay == 0.0);
  CHECK(hf.bias_correction);

  std::vector<const char*> recipe = words;
  recipe.insert(recipe.end(), {"--recipe", "google", "--weight-decay", "0.5"});
  CHECK(parse(recipe).run.schedule.warmup_ratio == 0.1);
  const TrainSettings google = parse(recipe).train;
  CHECK(google.adam_epsilon == 1e-6);
  CHECK(google.weight_decay == 0.5);
  CHECK_FALSE(google.bias_correction);
  recipe.insert(recipe.end(), {"--warmup-steps", "0"});
  CHECK(parse(recipe).run.schedule.warmup_ratio == 0.0);
}

TEST_CASE("the task nq has the baseline's defaults; given values are kept") {
  const std::vector<const char*> words = {"finetune", "--model",      "m", "--train-file",
                                          "t",        "--output-dir", "o", "--task=nq"};
  const Settings nq = parse(words);
  CHECK(nq.task == Task::kNq);
  CHECK(nq.data.max_seq_length == 512);
  CHECK(nq.data.doc_stride == 128);
  CHECK(nq.data.max_query_length == 64);
  CHECK(nq.data.max_contexts == 48);
  CHECK(nq.data.include_unknowns == 0.02);
  CHECK(nq.answers.n_best_size == 10);
  CHECK(nq.answers.max_answer_length == 30);
  CHECK(nq.answers.long_non_null_threshold == 2);
  CHECK(nq.answers.short_non_null_threshold == 2);
  std::vector<const char*> given = words;
  given.insert(given.end(), {"--max-seq-length=100", "--n-best-size=3", "--include-unknowns=1"});
  CHECK(parse(given).data.max_seq_length == 100);
  CHECK(parse(given).answers.n_best_size == 3);
  CHECK(parse(given).data.include_unknowns == 1);
}

TEST_CASE("what can be switched on may stand alone, before another flag or last") {
  const fsdp::RunOptions run = parse({"finetune", "--preset", "tiny", "--data", "synthetic",
                                      "--offload", "--recompute", "--output-dir", "o", "--force"})
                                   .run;
  CHECK(run.engine.cpu_offload);
  CHECK(run.engine.recompute == 1);
  CHECK(run.force);
  const fsdp::RunOptions off = parse({"finetune", "--preset", "tiny", "--data", "synthetic",
                                      "--offload", "false", "--output-dir", "o"})
                                   .run;
  CHECK_FALSE(off.engine.cpu_offload);
  CHECK(off.engine.recompute == 0);
  CHECK_FALSE(off.force);
}

TEST_CASE("engine flags reach the engine's options") {
  const fsdp::Options engine =
      parse({"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", "o",
             "--param-dtype", "bf16", "--reduce-dtype", "bfloat16", "--reshard-after-forward",
             "false", "--prefetch", "2", "--strategy", "replicate", "--seed", "7"})
          .run.engine;
  CHECK(engine.mixed_precision.param_dtype == torch::kBFloat16);
  CHECK(engine.mixed_precision.reduce_dtype == torch::kBFloat16);
  CHECK_FALSE(engine.reshard_after_forward);
  CHECK(engine.prefetch_units == 2);
  CHECK(engine.strategy == fsdp::Strategy::kReplicate);
  CHECK(engine.seed == 7);
}

TEST_CASE("an optimizer in 8 bits has whole blocks on every rank") {
  const auto granule = [](const char* optimizer) {
    return parse({"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", "o",
                  "--optim", optimizer})
        .run.engine.shard_granule;
  };
  CHECK(granule("adamw_8bit") == fsdp::AdamW8bit::kBlockNumel);
  CHECK(granule("adamw_torch") == 1);
}

TEST_CASE("flags of checkpoints are run_qa.py's; the default folder is in the output folder") {
  const std::vector<const char*> words = {"finetune",  "--preset",     "tiny", "--data",
                                          "synthetic", "--output-dir", "o"};
  const auto checkpoints = [&](std::initializer_list<const char*> more) {
    std::vector<const char*> all = words;
    all.insert(all.end(), more);
    return parse(all).run.checkpoints;
  };
  CHECK(checkpoints({}).folder == "o/checkpoints");
  CHECK(checkpoints({}).resume.empty());
  const fsdp::CheckpointOptions given =
      checkpoints({"--save_steps", "7", "--save_total_limit=2", "--resume_from_checkpoint", "d",
                   "--save-dir", "s", "--on-save-error", "continue", "--save_only_model"});
  CHECK(given.save_steps == 7);
  CHECK(given.save_total_limit == 2);
  CHECK(given.resume == "d");
  CHECK(given.folder == "s");
  CHECK(given.on_save_error == fsdp::OnSaveError::kContinue);
  CHECK(given.save_only_model);
  for (const char* resume :
       {"--resume", "--resume=auto", "--resume_from_checkpoint", "--resume_from_checkpoint=True"}) {
    CAPTURE(resume);
    CHECK(checkpoints({resume, "--resume-weights-only"}).resume == "auto");
  }
  CHECK(checkpoints({"--ablate", "communication"}).folder.empty());
}

TEST_CASE("what makes no sense together is refused with code 64 and the flag to change") {
  const auto refused = [](std::vector<const char*> words, const char* hint) {
    CAPTURE(hint);
    try {
      parse(std::move(words));
      FAIL("accepted");
    } catch (const fsdp::InvalidArgument& error) {
      CHECK(error.code() == fsdp::ExitCode::kUsage);
      CHECK(std::string(error.what()).find(hint) != std::string::npos);
    }
  };
  refused({}, "--help");
  refused({"fintune"}, "did you mean finetune?");
  refused({"finetune", "--fp16"}, "use --param-dtype float16;");
  refused({"finetune", "--epochs", "3"}, "use --num-train-epochs;");
  refused({"finetune", "--do_train"}, "use the command bert_qa finetune");
  refused({"finetune", "--train-file", "t", "--output-dir", "o"}, "--model DIR");
  refused({"finetune", "--preset", "tiny", "--train-file", "t", "--output-dir", "o"},
          "add --vocab-file FILE");
  refused({"finetune", "--model", "m", "--output-dir", "o"}, "--data synthetic");
  refused({"finetune", "--model", "m", "--train-file", "t"}, "add --output-dir DIR");
  refused(
      {"finetune", "--model", "m", "--train-file", "t", "--output-dir", "o", "--doc-stride", "400"},
      "128 and 384");
  refused({"predict", "--model", "m", "--output-dir", "o"}, "add --validation-file FILE");
  refused({"finetune", "--model", "m", "--data", "synthetic", "--output-dir", "o",
           "--optimizer-in-backward"},
          "add --max-grad-norm 0");
  refused({"predict", "--model", "m", "--learning-rate", "1"}, "--help");
  refused({"init", "--vocab-file", "v", "--output-dir", "o"}, "--preset NAME: tiny, mini");
  refused({"init", "--preset", "tiny", "--output-dir", "o"}, "add --vocab-file FILE");
  refused({"init", "--preset", "tiny", "--vocab-file", "v"}, "add --output-dir DIR");
  refused({"init", "--preset", "huge", "--vocab-file", "v", "--output-dir", "o", "--model", "m"},
          "there is no flag --model");
  refused({"predict", "--model", "m", "--max-shard-size", "1GB"},
          "there is no flag --max-shard-size");
  const std::vector<const char*> words{"finetune", "--model",      "m", "--train-file",
                                       "t",        "--output-dir", "o", "--optim"};
  const auto refused_optimizer = [&](std::vector<const char*> more, const char* hint) {
    more.insert(more.begin(), words.begin(), words.end());
    refused(std::move(more), hint);
  };
  refused_optimizer({"adafactor"},
                    "pass one of adamw_torch, sgd, lion_32bit, radam, lamb, lars, adamw_8bit");
  refused_optimizer({"sgd", "--adam-beta1", "0.8"}, "leave out --adam-beta1");
  refused_optimizer({"lamb", "--recipe", "google"}, "use adamw_torch");
}

// The flags of transformers 5.24. At the end are flags that only transformers 4 has.
constexpr std::string_view kRunQaFlags =
    "model_name_or_path config_name tokenizer_name cache_dir model_revision token "
    "trust_remote_code dataset_name dataset_config_name train_file validation_file "
    "test_file overwrite_cache preprocessing_num_workers max_seq_length "
    "pad_to_max_length max_train_samples max_eval_samples max_predict_samples "
    "version_2_with_negative null_score_diff_threshold doc_stride n_best_size "
    "max_answer_length output_dir per_device_train_batch_size num_train_epochs "
    "max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim "
    "optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules "
    "gradient_accumulation_steps average_tokens_across_devices max_grad_norm "
    "label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32 "
    "activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing "
    "gradient_checkpointing_kwargs torch_compile torch_compile_backend "
    "torch_compile_mode use_liger_kernel liger_kernel_config use_cache "
    "neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_strategy "
    "logging_steps logging_first_step log_on_each_node logging_nan_inf_filter "
    "include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to "
    "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id "
    "eval_strategy eval_steps eval_delay per_device_eval_batch_size "
    "prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object "
    "eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model "
    "save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint "
    "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push "
    "hub_revision load_best_model_at_end metric_for_best_model greater_is_better "
    "ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed "
    "data_seed use_cpu accelerator_config parallelism_config dataloader_drop_last "
    "dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order "
    "remove_unused_columns label_names train_sampling_strategy length_column_name "
    "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
    "ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug "
    "skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint local_rank "
    "resume overwrite_output_dir evaluation_strategy group_by_length logging_dir "
    "warmup_ratio fp16_backend half_precision_backend fp16_opt_level jit_mode_eval "
    "use_ipex use_mps_device no_cuda per_gpu_train_batch_size per_gpu_eval_batch_size "
    "save_safetensors past_index tpu_num_cores tpu_metrics_debug torchdynamo ray_scope "
    "push_to_hub_model_id push_to_hub_organization push_to_hub_token "
    "fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap include_inputs_for_metrics "
    "mp_parameters dispatch_batches split_batches include_tokens_per_second "
    "use_legacy_prediction_loop sharded_ddp adafactor use_auth_token "
    "evaluate_during_training xpu_backend ";

TEST_CASE("a flag of run_qa.py exists here, has another name, or what to do without it") {
  std::istringstream flags{std::string(kRunQaFlags)};
  std::vector<std::string> words, unknown;
  for (std::string flag; flags >> flag;) {
    CAPTURE(flag);
    const std::string given = "--" + flag + "=1";
    std::string text;
    try {
      parse({"finetune", given.c_str()});
    } catch (const fsdp::InvalidArgument& error) {
      CHECK(error.code() == fsdp::ExitCode::kUsage);
      text = error.what();
    }
    if (text.find("there is no flag") == std::string::npos) continue;
    CHECK(text.find("hint: --help lists the flags") == std::string::npos);
    CHECK(text.find("did you mean") == std::string::npos);
    CHECK(text.find("; --help lists the flags") != std::string::npos);
    unknown.push_back(given);
  }
  CHECK(unknown.size() > 100);
  // All flags in one command line.
  std::vector<const char*> all{"finetune"};
  for (const std::string& each : unknown) all.push_back(each.c_str());
  try {
    parse(all);
    FAIL("accepted");
  } catch (const fsdp::InvalidArgument& error) {
    const std::string what = error.text().what + ",";
    for (std::string name : unknown) {
      name.resize(name.find('='));
      std::ranges::replace(name, '_', '-');
      CHECK_MESSAGE(what.find(" " + name + ",") != std::string::npos, name);
    }
  }
}

TEST_CASE("a model's files are of at most 5 GB, or what --max-shard-size says, as transformers") {
  const auto shard_bytes = [](std::vector<const char*> words) {
    words.insert(words.begin(),
                 {"init", "--preset", "tiny", "--vocab-file", "v", "--output-dir", "o"});
    return parse(std::move(words)).max_shard_bytes;
  };
  CHECK(shard_bytes({}) == 5'000'000'000);
  CHECK(shard_bytes({"--max-shard-size", "1GB"}) == 1'000'000'000);
  CHECK(shard_bytes({"--max_shard_size=500MiB"}) == 500 << 20);
  for (const char* wrong : {"0", "-1", "1G", "GB", "", "1e9", "nan", "99999999TB"}) {
    CAPTURE(wrong);
    try {
      shard_bytes({"--max-shard-size", wrong});
      FAIL("accepted");
    } catch (const fsdp::InvalidArgument& error) {
      CHECK(error.code() == fsdp::ExitCode::kUsage);
      CHECK(std::string(error.what()).find("--max-shard-size") != std::string::npos);
    }
  }
}

TEST_CASE("a number that is none, or beyond its bounds, is refused with code 64 and its flag") {
  for (const char* flag :
       {"--num-train-epochs", "--learning-rate", "--weight-decay", "--warmup-ratio", "--adam-beta1",
        "--adam-beta2", "--adam-epsilon", "--max-grad-norm", "--dropout", "--timeout",
        "--null-score-diff-threshold"}) {
    for (const char* value : {"nan", "-nan", "inf", "-inf", "1e999", "-1e31", "1e31", "1x", ""}) {
      CAPTURE(flag);
      CAPTURE(value);
      try {
        parse({"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", "o", flag,
               value});
        FAIL("accepted");
      } catch (const fsdp::InvalidArgument& error) {
        CHECK(error.code() == fsdp::ExitCode::kUsage);
        CHECK(std::string(error.what()).find(flag) != std::string::npos);
      }
    }
  }
}

TEST_CASE("a flag given twice has its last value, as in run_qa.py") {
  const Settings settings =
      parse({"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", "o", "--data",
             "learnable", "--num-train-epochs", "3", "--num-train-epochs", "1"});
  CHECK(settings.train.num_epochs == 1);
  CHECK(settings.data.source == DataSource::kLearnable);
}

TEST_CASE("the engine's flags are the library's: device, bounds and refusals too") {
  const auto parse_with = [](std::vector<const char*> words) {
    words.insert(words.begin(),
                 {"finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir", "o"});
    return parse(std::move(words)).run;
  };
  CHECK(parse_with({}).mesh.device == fsdp::DeviceKind::kAuto);
  const fsdp::RunOptions run =
      parse_with({"--device=cuda", "--timeout", "2", "--trace", "t", "--ablate", "communication"});
  CHECK(run.mesh.device == fsdp::DeviceKind::kCuda);
  CHECK(run.mesh.timeout == std::chrono::seconds(2));
  CHECK(run.trace_file == "t");
  CHECK(run.ablate_communication);
  const auto refusal = [&](std::vector<const char*> words) -> std::string {
    try {
      parse_with(std::move(words));
      return "accepted";
    } catch (const fsdp::InvalidArgument& error) {
      CHECK(error.code() == fsdp::ExitCode::kUsage);
      return error.what();
    }
  };
  CHECK(refusal({"--device", "gpu"}) == "--device cannot be 'gpu'; hint: use auto, cpu or cuda");
  CHECK(refusal({"--prefetch", "1001"}) ==
        "--prefetch cannot be '1001'; hint: use a whole number from 0 to 1000");
  CHECK(refusal({"--max_seq_lenght", "8"}) ==
        "there is no flag --max-seq-lenght; hint: did you mean --max-seq-length? --help lists the "
        "flags");
  CHECK(refusal({"--devise", "cpu"}) ==
        "there is no flag --devise; hint: did you mean --device? --help lists the flags");
}

TEST_CASE("--help has every default, the exit codes, and no line of more than 80 columns") {
  for (const char* command : {"init", "finetune", "predict", "evaluate"}) {
    CAPTURE(command);
    const std::vector<const char*> words = {"bert_qa", command, "--help"};
    const std::string help = parse_command_line(static_cast<int>(words.size()), words.data()).help;
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
    CHECK(help.find("usage: bert_qa " + std::string(command)) == 0);
    CHECK(help.find("Exit codes: 0 success, 64 wrong command line") != std::string::npos);
    CHECK(help.find("--seed N                      seed of weights, order and dropout [42]") !=
          std::string::npos);
  }
  const std::vector<const char*> words = {"bert_qa", "finetune", "--help"};
  const std::string help = parse_command_line(static_cast<int>(words.size()), words.data()).help;
  for (const char* row :
       {"peak learning rate [5e-05]", "tokens per window [384]", "[linear]", "[0.999]",
        "passes over the training data [3]", "questions, from the start [all]",
        "steps between printed lines [50]", "run_qa.py (hf) or in BERT's paper"}) {
    CAPTURE(row);
    CHECK(help.find(row) != std::string::npos);
  }
}

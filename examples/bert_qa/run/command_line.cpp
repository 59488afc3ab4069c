#include "bert_qa/run/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bert_qa/run/command_help.h"
#include "bert_qa/run/command_words.h"
#include "bert_qa/run/settings_checks.h"
#include "bert_qa/run/task_flags.h"
#include "models/bert/presets.h"
#include "named_optimizer.h"
#include "planning/known_rates.h"

namespace bert_qa {
namespace {

const std::map<Command, std::pair<std::string, std::string>> kCommands = {
    {Command::kInit, {"init", "Writes a model of random weights, to start from"}},
    {Command::kFinetune, {"finetune", "Trains, answers the validation questions, writes a model"}},
    {Command::kPredict, {"predict", "Answers questions"}},
    {Command::kEvaluate, {"evaluate", "Answers questions and compares with their answers"}},
};

// Flags of run_qa.py that bert_qa does not have, with hints that are specific to them.
const std::map<std::string, std::string> kOfTheirScripts = {
    {"--do-train", "use the command bert_qa finetune"},
    {"--do-eval", "use the command bert_qa evaluate, or --validation-file of finetune"},
    {"--do-predict", "use the command bert_qa predict"},
    {"--dataset-name", "use --train-file and --validation-file with SQuAD files"},
    {"--dataset-config-name", "use --train-file and --validation-file with SQuAD files"},
    {"--config-name", "leave it out: the folder of --model has the configuration"},
    {"--max-predict-samples", "use --max-eval-samples"},
    {"--pad-to-max-length", "leave it out: a batch is padded to its longest window"},
    {"--overwrite-cache", "leave it out: nothing is cached"},
    {"--preprocessing-num-workers", "leave it out: each rank makes its own windows"},
};

template <class T>
std::string name_of(const std::map<std::string, T>& choices, T value) {
  const auto chosen =
      std::ranges::find_if(choices, [&](const auto& choice) { return choice.second == value; });
  return chosen != choices.end() ? chosen->first : "";
}

template <class T>
void add_choice(CLI::App& app, const std::string& flag, T& value,
                const std::map<std::string, T>& choices, const std::string& text) {
  app.add_option_function<std::string>(
         flag, [&value, choices](const std::string& name) { value = choices.at(name); }, text)
      ->check(CLI::IsMember(choices).description(""))
      ->type_name("NAME")
      ->default_str(name_of(choices, value));
}

// Returns a range check that refuses NaN. CLI::Range accepts NaN, because NaN is neither below nor
// above a bound.
CLI::Validator number_in(double least, double most) {
  const std::string range = fmt::format("[{} - {}]", least, most);
  return {[=](std::string& text) -> std::string {
            double value = 0;
            const bool in =
                CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
            return in ? "" : fmt::format("{} is not a number in {}", text, range);
          },
          "FLOAT in " + range};
}

void add_model_flags(CLI::App& app, Command command, Settings& settings) {
  ModelSource& model = settings.model;
  auto* group = app.add_option_group("model");
  add_task_flag(*group, settings);
  const bool init = command == Command::kInit;
  CLI::Option* preset = nullptr;
  if (init || command == Command::kFinetune) {
    preset = group->add_option("--preset", model.preset, "random weights: " + bert::preset_names());
  }
  group->add_option("--vocab-file", model.vocab_file,
                    init ? "vocab.txt; the tokenizer_config.json beside it sets its case"
                         : "vocab.txt, instead of the folder's; the folder sets its case");
  if (!init) {
    auto* folder = group->add_option("--model,--model-name-or-path", model.folder,
                                     "Hugging Face folder of a bert or megatron-bert");
    if (preset != nullptr) preset->excludes(folder);
    group->add_option("--qa-head", model.qa_head,
                      "safetensors file with qa_outputs.weight and qa_outputs.bias");
  }
  group->add_option("--dropout", model.dropout, "instead of the configuration's probabilities")
      ->check(number_in(0.0, 0.99));
}

void add_data_flags(CLI::App& app, Command command, Settings& settings) {
  DataSettings& data = settings.data;
  auto* group = app.add_option_group("data");
  if (command == Command::kFinetune) {
    add_choice<DataSource>(*group, "--data", data.source,
                           {{"files", DataSource::kFiles},
                            {"synthetic", DataSource::kSynthetic},
                            {"learnable", DataSource::kLearnable}},
                           "files; synthetic: shapes without a file; learnable: also answers");
    group->add_option("--train-file", data.train_file,
                      "SQuAD JSON, nested or a row a line; nq: a record a line, plain or .gz");
    group->add_option("--max-train-samples", data.max_train_samples, "questions, from the start")
        ->default_str("all");
    group->add_flag("!--no-shuffle", data.shuffle, "windows in file order");
    group->add_flag("--dataloader-drop-last", data.drop_last, "leave out an epoch's short batch");
  }
  group->add_flag("--skip-bad-rows", data.skip_bad_rows,
                  "leave out and name rows with a misplaced answer, a repeated id, or a question "
                  "that leaves no room for the context");
  group->add_option("--validation-file,--test-file", data.validation_file,
                    "questions to answer, in the same form");
  group->add_option("--max-eval-samples", data.max_eval_samples, "questions, from the start")
      ->default_str("all");
  group->add_option("--max-seq-length", data.max_seq_length, "tokens per window")
      ->check(CLI::Range(8, 1 << 20));
  group
      ->add_option("--doc-stride", data.doc_stride,
                   "tokens that neighbouring windows share; nq: between their starts")
      ->check(CLI::Range(0, 1 << 20));
  add_nq_data_flags(*group, command, settings);
}

void add_training_flags(CLI::App& app, Settings& settings) {
  TrainSettings& train = settings.train;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 40);
  auto* group = app.add_option_group("training");
  group
      ->add_option("--per-device-train-batch-size", train.train_batch_size,
                   "windows per rank and micro-batch")
      ->check(positive);
  group
      ->add_option("--gradient-accumulation-steps", train.accumulation_steps,
                   "micro-batches per step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  group->add_option("--num-train-epochs", train.num_epochs, "passes over the training data")
      ->check(number_in(0.0, 1e6));
  group->add_option("--max-steps", train.max_steps, "instead of epochs")->default_str("");
  group
      ->add_option("--stop-after-step", train.stop_after_step,
                   "stop there, on the schedule of the whole run")
      ->default_str("");
  group->add_option("--learning-rate", train.learning_rate, "peak learning rate")
      ->check(number_in(0.0, 1e9));
  group->add_option("--weight-decay", train.weight_decay, "not on biases and norms")
      ->check(number_in(0.0, 1e9));
  group->add_option("--optim", train.optim, optimizer_names());
  constexpr double kBelowOne = 0.999999999;
  group->add_option("--adam-beta1", train.adam_beta1)->check(number_in(0.0, kBelowOne));
  group->add_option("--adam-beta2", train.adam_beta2)->check(number_in(0.0, kBelowOne));
  group->add_option("--adam-epsilon", train.adam_epsilon)->check(number_in(1e-30, 1.0));
  group->add_option("--max-grad-norm", train.max_grad_norm, "0: no clipping")
      ->check(number_in(0.0, 1e9));
  group->add_option("--logging-steps", train.logging_steps, "steps between printed lines")
      ->check(positive);
}

void add_answer_flags(CLI::App& app, Settings& settings) {
  AnswerSettings& answers = settings.answers;
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 20);
  auto* group = app.add_option_group("answers");
  group->add_option("--per-device-eval-batch-size", answers.eval_batch_size, "windows per rank")
      ->check(positive);
  group->add_flag("--version-2-with-negative", answers.version_2,
                  "some questions have no answer (SQuAD v2)");
  group
      ->add_option("--null-score-diff-threshold", answers.null_score_diff_threshold,
                   "no answer if it scores better by more than this")
      ->check(number_in(-1e30, 1e30));
  group->add_option("--n-best-size", answers.n_best_size, "answers to choose from")
      ->check(positive);
  group->add_option("--max-answer-length", answers.max_answer_length, "tokens")->check(positive);
  add_nq_answer_flags(*group, settings);
}

// Adds flags that the library defines. The library also checks their values.
void add_flags_of(CLI::App& group, std::vector<fsdp::RunFlag> flags) {
  for (fsdp::RunFlag& flag : flags) {
    const auto set = [set = std::move(flag.set), alone = flag.alone](const std::string& value) {
      set(value.empty() && !alone.empty() ? alone : value);
    };
    CLI::Option* option = group.add_option_function<std::string>(flag.name, set, flag.meaning)
                              ->type_name(flag.value_name);
    if (flag.alone.empty()) {
      option->default_str(flag.value);
    } else {  // with default_str the parser would accept a flag without a value
      option->expected(0, 1);
      if (!flag.value.empty()) option->description(flag.meaning + " [" + flag.value + "]");
    }
  }
}

void add_engine_flags(CLI::App& app, Settings& settings) {
  auto* group = app.add_option_group("engine");
  add_flags_of(*group, settings.run.engine_flags());
  group
      ->add_option("--num-threads", settings.num_threads,
                   "threads per rank; 0: cores / ranks of the host")
      ->check(CLI::Range(0, 4096));
}

void add_output_flags(CLI::App& app, Command command, Settings& settings) {
  app.add_option("--output-dir", settings.output_dir, "created if it is missing");
  app.add_flag("--overwrite-output-dir", settings.overwrite_output_dir,
               "replace the results of an earlier run");
  if (command != Command::kInit && command != Command::kFinetune) return;
  const auto set = [&settings](const std::string& text) {
    const std::optional<int64_t> bytes = fsdp::parse_bytes(text);
    const std::string question = fsdp::question_of_unit(text);
    if (!bytes || *bytes == 0 || !question.empty()) {
      refuse(fmt::format("--max-shard-size cannot be '{}'", text),
             question.empty() ? "use a size like 5GB, 500MiB or 1000000" : question);
    }
    settings.max_shard_bytes = *bytes;
  };
  app.add_option_function<std::string>(
         "--max-shard-size", set, "most bytes of a model file; a larger model is written in shards")
      ->type_name("BYTES")
      ->default_str("5GB");
}

void add_run_flags(CLI::App& app, Settings& settings) {
  add_flags_of(*app.add_option_group("schedule"), settings.run.schedule_flags());
  add_flags_of(*app.add_option_group("evaluation"), settings.run.evaluation_flags());
  add_flags_of(*app.add_option_group("reports"), settings.run.report_flags());
  add_flags_of(*app.add_option_group("checkpoints"), settings.run.checkpoint_flags());
  add_flags_of(*app.add_option_group("diagnostics"), settings.run.diagnostic_flags());
  auto* plan = app.add_option_group("plan");
  add_flags_of(*plan, settings.run.plan_flags());
  plan->add_option_function<std::string>(
          "--time",
          [&settings](const std::string& name) { settings.rates = planning::find_rates(name); },
          fmt::format("predict the time of a step: a file of rates (docs/rehearsal.md), or those "
                      "of {}",
                      fmt::join(planning::rates_names(), ", ")))
      ->type_name("FILE|NAME");
}

// Sets the values of the recipe, except values that the command line sets.
void apply_google_recipe(const CLI::App& command, Settings& settings) {
  TrainSettings& train = settings.train;
  train.bias_correction = false;
  if (command.count("--adam-epsilon") == 0) train.adam_epsilon = 1e-6;
  if (command.count("--weight-decay") == 0) train.weight_decay = 0.01;
  fsdp::ScheduleOptions& schedule = settings.run.schedule;
  if (!schedule.has_warmup_flag) schedule.warmup_ratio = 0.1;
}

// Appends the names of a command's flags in all spellings. Groups are subcommands without a name.
void append_flags(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group : app.get_subcommands([](const CLI::App*) { return true; })) {
    append_flags(*group, names);
  }
}

[[noreturn]] void refuse_extra(const CLI::App& app, const fsdp::RunOptions& run) {
  const auto chosen = app.get_subcommands();
  std::vector<std::string> names;
  append_flags(chosen.empty() ? app : *chosen.front(), names);
  run.refuse(app.remaining(/*recurse=*/true), names, kOfTheirScripts);
}

[[noreturn]] void refuse_command(const std::string& word) {
  std::vector<std::string> names;
  for (const auto& [command, words] : kCommands) names.push_back(words.first);
  const std::string nearest = fsdp::nearest_of(word, names);
  refuse(fmt::format("there is no command {}", word),
         nearest.empty() ? "use init, finetune, predict or evaluate; bert_qa --help lists them"
                         : fmt::format("did you mean {}? bert_qa --help lists them", nearest));
}

CLI::App* add_command(CLI::App& app, Command command, Settings& settings) {
  const auto& [name, text] = kCommands.at(command);
  CLI::App* sub = app.add_subcommand(name, text);
  add_model_flags(*sub, command, settings);
  if (command != Command::kInit) {
    add_data_flags(*sub, command, settings);
    if (command == Command::kFinetune) add_training_flags(*sub, settings);
    add_answer_flags(*sub, settings);
  }
  add_engine_flags(*sub, settings);
  if (command == Command::kFinetune) add_run_flags(*sub, settings);
  add_output_flags(*sub, command, settings);
  sub->add_option("--seed", settings.seed, "seed of weights, order and dropout")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  return sub;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  std::string recipe = "hf";
  CLI::App app("Fine-tunes BERT for question answering with sharded parameters.", "bert_qa");
  app.require_subcommand(1);
  // The last value of a flag counts, as in run_qa.py. So flags that are appended to a script's own
  // flags replace them.
  app.option_defaults()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->always_capture_default();
  std::map<Command, CLI::App*> commands;
  for (const auto& [command, text] : kCommands) {
    commands[command] = add_command(app, command, line.settings);
  }
  commands[Command::kFinetune]
      ->add_option("--recipe", recipe, "defaults as in run_qa.py (hf) or in BERT's paper (google)")
      ->check(CLI::IsMember({"hf", "google"}).description(""));
  refuse_flags_as_values(app);
  try {
    // Group each flag with its values: ranks compare these lines, and a mismatch names a flag.
    std::vector<std::string> arguments = command_words(argc, argv);
    for (const std::string& argument : arguments) {
      if (line.words.empty() || argument.starts_with("--")) {
        line.words.push_back(argument);
      } else {
        line.words.back() += " " + argument;
      }
    }
    std::reverse(arguments.begin(), arguments.end());  // CLI11 pops arguments from the back
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    line.help = help_of(chosen.empty() ? app : *chosen.front());
    return line;
  } catch (const CLI::ExtrasError&) {
    refuse_extra(app, line.settings.run);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && argc > 1) refuse_command(argv[1]);
    refuse(error.what(), "see bert_qa COMMAND --help");
  } catch (const std::out_of_range&) {  // CLI11 does not check the number in --no-shuffle=N
    refuse("a number of the command line is too large", "see bert_qa COMMAND --help");
  }
  for (const auto& [command, sub] : commands) {
    if (sub->parsed()) line.settings.command = command;
  }
  const CLI::App& finetune = *commands[Command::kFinetune];
  const OptimizerName& optimizer = optimizer_named(line.settings.train.optim);
  const bool sets_adam = finetune.count("--adam-beta1") + finetune.count("--adam-beta2") +
                             finetune.count("--adam-epsilon") >
                         0;
  if (!optimizer.has_betas && sets_adam) {
    refuse(fmt::format("--optim {} has neither betas nor an epsilon", optimizer.name),
           "leave out --adam-beta1, --adam-beta2 and --adam-epsilon");
  }
  if (optimizer.name != "adamw_torch" && recipe == "google") {
    refuse(fmt::format("--recipe google cannot have --optim {}", optimizer.name),
           "use adamw_torch: the recipe is AdamW without bias correction");
  }
  // After parsing, because the recipe's defaults must not replace given flags.
  if (recipe == "google") {
    apply_google_recipe(*commands[Command::kFinetune], line.settings);
  }
  apply_task(*commands[line.settings.command], line.settings);
  line.settings.run.engine.seed = line.settings.seed;
  prepare_engine(optimizer.name, line.settings.run.engine);
  // `init` runs no step, so the engine must not require the memory for gradients and slots.
  if (line.settings.command == Command::kInit) line.settings.run.engine.try_beyond_plan = true;
  check_settings(line.settings);
  if (line.settings.command == Command::kFinetune && !line.settings.ablated()) {
    line.settings.run.checkpoints.set_default_folder(line.settings.output_dir);
  }
  return line;
}

}  // namespace bert_qa

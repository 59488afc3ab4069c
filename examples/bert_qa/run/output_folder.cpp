#include "bert_qa/run/output_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/checkpoint.h>
#include <fsdp/checkpoints.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>
#include <fsdp/safetensors_folder_writer.h>
#include <fsdp/whole_file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bert_qa/hf/model_config.h"
#include "bert_qa/hf/tokenizer_folder.h"

namespace bert_qa {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".bert_qa.lock";
constexpr const char* kLog = "train_log.jsonl";
constexpr const char* kWritingModel = "writing the model";

// Returns the names of the files that a run writes at its end. The log is not one of them. A run
// that ended early leaves only the log, so it can be repeated without --overwrite-output-dir.
std::vector<std::string> results_of(const Settings& settings) {
  std::vector<std::string> names;
  if (settings.command != Command::kInit) names.emplace_back("metrics.json");
  if (settings.ablated()) return names;
  if (settings.writes_model()) {
    names.insert(names.end(), {"model.safetensors", "model.safetensors.index.json", "config.json"});
    if (settings.data.source == DataSource::kFiles) {
      names.insert(names.end(), {"vocab.txt", "tokenizer_config.json", "special_tokens_map.json"});
    }
  }
  if (!settings.data.validation_file.empty()) {
    names.emplace_back("predictions.json");
    if (settings.task == Task::kSquad) names.emplace_back("nbest_predictions.json");
    if (settings.answers.version_2) names.emplace_back("null_odds.json");
  }
  return names;
}

[[noreturn]] void cannot_create(std::string what, const fs::path& where, std::string cause,
                                std::string hint) {
  throw fsdp::IoError(fsdp::ExitCode::kCannotCreate, {.what = std::move(what),
                                                      .where = where.string(),
                                                      .cause = std::move(cause),
                                                      .hint = std::move(hint)});
}

const fs::path& checked(const Settings& settings) {
  const fs::path& folder = settings.output_dir;
  std::error_code code;
  if (settings.writes_model() && fs::equivalent(folder, settings.model.folder, code)) {
    throw fsdp::InvalidArgument(
        {.what = "--output-dir is the folder of --model: the run would replace the model's files",
         .where = folder.string(),
         .hint = "use another --output-dir"},
        fsdp::ExitCode::kUsage);
  }
  return folder;
}

// Removes empty folders, innermost first. Stops at the first folder that is not empty.
void remove_empty(const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) {
    if (::rmdir(folder.c_str()) != 0 && errno != ENOENT) return;
  }
}

// Returns the shards of a model in the folder. Their names contain the number of shards, so the
// folder must be searched for them.
std::vector<std::string> shards_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with("model-") && fsdp::is_weights_name(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void check_results(const Settings& settings, const std::vector<std::string>& names,
                   bool continues_run) {
  std::vector<std::string> there;
  for (const std::string& name : names) {
    std::error_code ignored;
    const fs::path path = settings.output_dir / name;
    if (fs::is_directory(path, ignored)) {
      cannot_create("a folder has the name of a result file", path, {},
                    "move it, or use another --output-dir");
    }
    if (name != kLog && fs::exists(path, ignored)) there.push_back(name);
  }
  if (settings.writes_model()) {
    const std::vector<std::string> shards = shards_in(settings.output_dir);
    there.insert(there.end(), shards.begin(), shards.end());
  }
  if (there.empty() || settings.overwrite_output_dir || continues_run) return;
  cannot_create("the output folder holds an earlier run's results", settings.output_dir,
                fmt::format("{} would be replaced", fmt::join(there, ", ")),
                "add --overwrite-output-dir to replace them, or use another --output-dir");
}

// Creates a new folder beside `folder`.
fs::path make_sibling(const fs::path& folder) {
  fs::path base = folder.lexically_normal();
  if (!base.has_filename()) base = base.parent_path();  // for "out/"
  if (base == "." || base.filename() == "..") base = fs::absolute(base).lexically_normal();
  if (base.has_parent_path()) fs::create_directories(base.parent_path());
  for (int i = 1;; ++i) {
    fs::path sibling = base;
    sibling += fmt::format(".saved-{}", i);
    if (fs::create_directory(sibling)) return sibling;
  }
}

void write_configuration(const Inputs& inputs, const fs::path& folder) {
  fsdp::write_file(folder / "config.json", format_model_config(inputs.config));
  if (!inputs.tokenizer) return;
  fsdp::write_file(folder / "vocab.txt", format_vocab(inputs.tokenizer->vocab()));
  fsdp::write_file(
      folder / "tokenizer_config.json",
      format_tokenizer_config(*inputs.tokenizer, inputs.config.max_position_embeddings));
  fsdp::write_file(folder / "special_tokens_map.json",
                   format_special_tokens_map(*inputs.tokenizer));
}

fsdp::Outcome try_to_save(fsdp::Engine& engine, const Inputs& inputs, const fs::path& folder,
                          int64_t max_shard_bytes) {
  const fsdp::Outcome weights =
      fsdp::try_to_save_weights_folder(engine, folder, {.max_shard_bytes = max_shard_bytes});
  if (weights.failed()) return weights;
  return fsdp::run_on_all_ranks(engine.mesh(), kWritingModel, [&] {
    if (engine.mesh().rank() == 0) write_configuration(inputs, folder);
  });
}

// Returns the error text "WHAT (WHERE); CAUSE" without the hint.
std::string reason_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const fsdp::Error& error) {
    const fsdp::ErrorText& text = error.text();
    return fmt::format("{} ({}); {}", text.what, text.where, text.cause);
  }
}

}  // namespace

NewFolders::NewFolders(const fs::path& folder) {
  std::error_code code;
  // Listed before they are created: afterwards they look like older ones.
  for (fs::path path = folder; !path.empty() && !fs::exists(path, code);
       path = path.parent_path()) {
    made_.push_back(path);
  }
  fs::create_directories(folder, code);
  if (code) {
    remove_empty(made_);
    cannot_create("the output folder cannot be created", folder, code.message(),
                  "use a writable --output-dir");
  }
}

NewFolders::~NewFolders() { remove_empty(made_); }

OutputFolder::OutputFolder(const Settings& settings, std::vector<std::string>& notes)
    : continues_run_(settings.command == Command::kFinetune &&
                     fsdp::continues_run(settings.run.checkpoints)),
      folders_(settings.output_dir),
      lock_(checked(settings), kLock) {
  if (lock_.note()) notes.push_back(*lock_.note());
  std::vector<std::string> names = results_of(settings);
  if (settings.command == Command::kFinetune) names.emplace_back(kLog);
  check_results(settings, names, continues_run_);
  const auto is_ours = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end() ||
           (settings.writes_model() && fsdp::is_weights_name(name));
  };
  for (const std::string& name : fsdp::remove_leftovers(settings.output_dir, is_ours)) {
    notes.push_back(fmt::format("removed {}, which a killed run left incomplete",
                                (settings.output_dir / name).string()));
  }
  fsdp::try_to_write(settings.output_dir / "metrics.json");  // fails now if the folder is read-only
}

SavedModel save_model(fsdp::Engine& engine, const Inputs& inputs, const Settings& settings,
                      terminal::Console& console) {
  const fsdp::Mesh& mesh = engine.mesh();
  const fs::path& folder = settings.output_dir;
  const int64_t max_shard_bytes = settings.max_shard_bytes;
  const fsdp::Outcome first = try_to_save(engine, inputs, folder, max_shard_bytes);
  if (!first.failed()) return {.folder = folder};
  // Other errors, such as a full disk, would occur again in a folder beside --output-dir.
  if (first.code != fsdp::ExitCode::kCannotCreate) fsdp::throw_on_all_ranks(mesh, first);
  SavedModel saved{.refusal = first};
  const fsdp::Outcome sibling = fsdp::run_on_all_ranks(mesh, kWritingModel, [&] {
    if (mesh.rank() != 0) return;
    saved.folder = make_sibling(folder);
    console.print(fsdp::printable(fmt::format("note: {}: the model is written to {}\n",
                                              reason_of(first.mine), saved.folder.string()),
                                  "\n"));
  });
  if (sibling.failed()) fsdp::throw_on_all_ranks(mesh, first);  // the first error is the cause
  fsdp::throw_on_all_ranks(mesh, try_to_save(engine, inputs, saved.folder, max_shard_bytes));
  return saved;
}

void end_if_elsewhere(const fsdp::Mesh& mesh, const SavedModel& saved, const fs::path& asked_for) {
  if (!saved.refusal.failed()) return;
  fsdp::run_or_throw_on_all_ranks(mesh, kWritingModel, [&] {
    if (mesh.rank() != 0) return;
    cannot_create("the output folder could not be written at the end", asked_for,
                  reason_of(saved.refusal.mine),
                  fmt::format("use the complete model and results in {}", saved.folder.string()));
  });
}

void write_json(const fs::path& file, const nlohmann::ordered_json& json) {
  fsdp::write_file(file, json.dump(2) + "\n");
}

}  // namespace bert_qa

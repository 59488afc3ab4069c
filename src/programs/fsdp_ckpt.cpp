// fsdp-ckpt lists, shows, checks, compares, removes and exports checkpoints. kCommands lists its
// commands.
//
// Exit codes: 0 done, whole or equal; 1 the checkpoints of diff differ; 64 wrong usage; 65 a
// checkpoint is damaged; 73 a job holds the folder, or the output folder cannot be used; 74 cannot
// be read or written; 78 a value is too large for --dtype.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/found_checkpoints.h"
#include "programs/checkpoint_check.h"
#include "programs/checkpoint_diff.h"
#include "programs/checkpoint_export.h"
#include "programs/checkpoint_listing.h"
#include "programs/checkpoint_prune.h"
#include "programs/command_line.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"
#include "run/unknown_flags.h"

namespace fsdp {
namespace {

// The words of the command line. Each command uses some of them.
struct Asked {
  std::string path;   // first argument
  std::string other;  // second argument
  bool summary = false;
  bool all = false;
  bool dry_run = false;
  std::string keep;
  std::string dtype = "float32";
  std::string max_shard_size;
  std::string object = ExportOptions().object;
};

constexpr const char* kExitCodes =
    "Exit codes: 0 done, whole or equal, 1 different (diff), 64 usage, 65 damaged,\n"
    "73 in use or not empty, 74 cannot be read or written, 78 too large for --dtype.";

// A search in a folder that does not exist finds no checkpoint, which would hide a wrong path.
void require_exists(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  throw IoError(ExitCode::kIoError, {.what = "cannot read the folder",
                                     .where = path.string(),
                                     .cause = error ? error.message() : "No such file or directory",
                                     .hint = "check the path"});
}

// Returns the path of a folder that contains checkpoints.
std::filesystem::path folder_of_checkpoints(const std::string& path) {
  require_exists(path);
  if (!is_checkpoint_folder(path)) return path;
  refuse_usage(fmt::format("{} is a checkpoint", quoted_name(path)),
               "pass the folder that contains it, or use inspect or verify");
}

[[noreturn]] void refuse_no_checkpoint(const std::filesystem::path& path, std::string hint) {
  throw IoError(
      ExitCode::kIoError,
      {.what = "there is no checkpoint", .where = path.string(), .hint = std::move(hint)});
}

// Returns the path of a checkpoint.
std::filesystem::path checkpoint_at(const std::string& path) {
  require_exists(path);
  if (!is_checkpoint_folder(path)) {
    refuse_no_checkpoint(path, "pass the folder of one checkpoint; list shows those of a folder");
  }
  return path;
}

// The commands return the exit code.

int list(const Asked& asked) {
  const std::filesystem::path folder = folder_of_checkpoints(asked.path);
  const FoundCheckpoints found = find_checkpoints(folder);
  if (found.of_run.empty() && found.damaged.empty()) {
    print(fmt::format("no checkpoint in {}\n", printable(folder.string())));
  } else {
    print(format_checkpoints(found));
  }
  return 0;
}

int inspect(const Asked& asked) {
  const std::filesystem::path path = checkpoint_at(asked.path);
  const CheckpointManifest manifest = read_manifest(path);
  print(printable(path.string()) + "\n" + format_manifest(manifest, asked.summary));
  flush_output();
  check_files(path, manifest.files);
  return 0;
}

// Returns the checkpoints that the path names, newest first.
std::vector<std::filesystem::path> checkpoints_of(const std::filesystem::path& path) {
  require_exists(path);
  if (is_checkpoint_folder(path)) return {path};
  std::vector<std::filesystem::path> folders = folders_in(path);
  std::erase_if(folders, [](const std::filesystem::path& each) {
    return !is_checkpoint_name(each.filename().string());
  });
  if (folders.empty()) {
    refuse_no_checkpoint(path, "pass the folder of a checkpoint, or the folder of --save-dir");
  }
  std::ranges::sort(folders, std::ranges::greater());
  return folders;
}

int verify(const Asked& asked) {
  const std::filesystem::path path = asked.path;
  const std::vector<std::filesystem::path> folders = checkpoints_of(path);
  int64_t damaged = 0, unreadable = 0;
  for (const std::filesystem::path& folder : folders) {
    const CheckedCheckpoint checked =
        check_checkpoint(folder, [](const std::string& line) { print(line + "\n"); });
    print(checked.summary + "\n");
    flush_output();  // to check the next checkpoint can take minutes
    damaged += checked.state == CheckpointState::kDamaged ? 1 : 0;
    unreadable += checked.state == CheckpointState::kUnreadable ? 1 : 0;
  }
  const int64_t count = std::ssize(folders);
  if (count > 1) {
    print(fmt::format("{} checkpoints: {} whole, {} damaged{}\n", count,
                      count - damaged - unreadable, damaged,
                      unreadable > 0 ? fmt::format(", {} unreadable", unreadable) : ""));
    flush_output();
  }
  const auto refuse = [&](ExitCode code, int64_t some, std::string_view what, std::string hint) {
    const std::string which =
        count == 1 ? "the checkpoint" : fmt::format("{} of {} checkpoints", some, count);
    throw IoError(code, {.what = fmt::format("{} {}", which, what),
                         .where = path.string(),
                         .hint = std::move(hint)});
  };
  if (damaged > 0) {
    refuse(ExitCode::kCorruptData, damaged, damaged == 1 ? "is damaged" : "are damaged",
           "resume from a checkpoint that is whole");
  }
  if (unreadable > 0) {
    refuse(ExitCode::kIoError, unreadable, "cannot be read", "check permissions and the disk");
  }
  return 0;
}

int diff(const Asked& asked) {
  const bool equal =
      compare_checkpoints(checkpoint_at(asked.path), checkpoint_at(asked.other), asked.all,
                          [](const std::string& line) { print(line + "\n"); });
  if (equal) print("the checkpoints are equal\n");
  return equal ? 0 : 1;
}

[[noreturn]] void refuse_value(std::string_view flag, std::string_view value, std::string hint) {
  refuse_usage(fmt::format("{} cannot be {}", flag, quoted_name(value)), std::move(hint));
}

int prune(const Asked& asked) {
  PruneOptions options{.dry_run = asked.dry_run};
  const char* end = asked.keep.data() + asked.keep.size();
  const auto [at, error] = std::from_chars(asked.keep.data(), end, options.keep);
  if (error != std::errc() || at != end || options.keep < 2) {
    refuse_value("--keep", asked.keep, "use a whole number, 2 or more");
  }
  prune_checkpoints(folder_of_checkpoints(asked.path), options, [](const std::string& line) {
    print(line + "\n");
    flush_output();  // shows what was removed, even if a later removal fails
  });
  return 0;
}

StoredDType dtype_of_flag(const std::string& name) {
  if (name == "float32" || name == "fp32") return StoredDType::kF32;
  if (name == "bfloat16" || name == "bf16") return StoredDType::kBF16;
  if (name == "float16" || name == "fp16") return StoredDType::kF16;
  refuse_value("--dtype", name, "use float32, bfloat16 or float16");
}

int64_t shard_bytes_of_flag(const std::string& text) {
  if (text.empty()) return ExportOptions().max_shard_bytes;
  const std::string question = question_of_unit(text);
  if (!question.empty()) refuse_value("--max-shard-size", text, question);
  const std::optional<int64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes < 1) refuse_value("--max-shard-size", text, "use a size like 5GB");
  return *bytes;
}

int export_folder(const Asked& asked) {
  const ExportOptions options{.object = asked.object,
                              .dtype = dtype_of_flag(asked.dtype),
                              .max_shard_bytes = shard_bytes_of_flag(asked.max_shard_size)};
  const ExportReport report = export_weights(checkpoint_at(asked.path), asked.other, options);
  for (const std::string& note : report.notes) print("note: " + note + "\n");
  print(fmt::format("wrote {} tensor{}, {}, to {} file{} in {}\n", report.tensors,
                    report.tensors == 1 ? "" : "s", format_bytes(report.bytes), report.files,
                    report.files == 1 ? "" : "s", printable(asked.other)));
  return 0;
}

struct Command {
  const char* name;
  const char* usage;  // the words after the name
  const char* meaning;
  void (*add_options)(CLI::App& command, Asked& asked);
  int (*run)(const Asked& asked);
};

void add_folder(CLI::App& command, Asked& asked) {
  command.add_option("FOLDER", asked.path, "the folder with the checkpoints (--save-dir)")
      ->required();
}
void add_checkpoint(CLI::App& command, Asked& asked) {
  command.add_option("CHECKPOINT", asked.path, "the folder of a checkpoint")->required();
}

constexpr std::array kCommands{
    Command{"list", "FOLDER", "one line for each checkpoint, newest first", add_folder, list},
    Command{"inspect", "CHECKPOINT [--summary]", "the content of a checkpoint",
            [](CLI::App& command, Asked& asked) {
              add_checkpoint(command, asked);
              command.add_flag("--summary", asked.summary, "totals by type and by name prefix");
            },
            inspect},
    Command{"verify", "PATH", "compares every byte with its hash",
            [](CLI::App& command, Asked& asked) {
              command.add_option("PATH", asked.path, "a checkpoint, or a folder with checkpoints")
                  ->required();
            },
            verify},
    Command{"diff", "A B [--all]", "compares two checkpoints of any numbers of ranks",
            [](CLI::App& command, Asked& asked) {
              command.add_option("A", asked.path, "the folder of a checkpoint")->required();
              command.add_option("B", asked.other, "the folder of another one")->required();
              command.add_flag("--all", asked.all, "list every tensor that differs");
            },
            diff},
    Command{"prune", "FOLDER --keep N [--dry-run]", "removes the oldest checkpoints of a run",
            [](CLI::App& command, Asked& asked) {
              add_folder(command, asked);
              command
                  .add_option("--keep", asked.keep,
                              "keep the newest N of the run that saved last, 2 or more")
                  ->type_name("N")
                  ->required();
              command.add_flag("--dry-run", asked.dry_run, "remove nothing");
            },
            prune},
    Command{"export", "CHECKPOINT FOLDER [--dtype NAME] [--max-shard-size BYTES] [--object NAME]",
            "writes the weights as a Hugging Face folder",
            [](CLI::App& command, Asked& asked) {
              add_checkpoint(command, asked);
              command.add_option("FOLDER", asked.other, "a new or empty folder")->required();
              command
                  .add_option("--dtype", asked.dtype,
                              "of the parameters: float32, bfloat16 or float16 [float32]")
                  ->type_name("NAME");
              command
                  .add_option("--max-shard-size", asked.max_shard_size,
                              "most bytes of a file; more weights become shards [5GB]")
                  ->type_name("BYTES");
              command
                  .add_option("--object", asked.object,
                              "the engine's name in the training state [model]")
                  ->type_name("NAME");
            },
            export_folder}};

std::string hint_for_commands(std::string_view typed) {
  std::vector<std::string> names;
  for (const Command& each : kCommands) names.emplace_back(each.name);
  const std::string nearest = nearest_of(typed, names);
  if (!nearest.empty()) return fmt::format("did you mean {}?", nearest);
  const std::string last = std::move(names.back());
  names.pop_back();
  return fmt::format("use {} or {}; fsdp-ckpt --help describes them", fmt::join(names, ", "), last);
}

std::string usage_of(const Command& command) {
  return fmt::format("use fsdp-ckpt {} {}", command.name, command.usage);
}

// Refuses all unknown flags in one error. CLI11's parser would name only the first one.
void check_flags(std::span<char*> words, const CLI::App& command, std::string usage) {
  std::vector<std::string> known, unknown;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const std::string word : words) {
    if (word == "--") break;
    const bool is_number = word.size() > 1 && std::isdigit(static_cast<unsigned char>(word[1]));
    if (!word.starts_with('-') || is_number || word == "-h") continue;
    if (std::ranges::find(known, word.substr(0, word.find('='))) == known.end()) {
      unknown.push_back(word);
    }
  }
  if (!unknown.empty()) refuse_unknown(unknown, {.names = known, .usage = std::move(usage)});
}

// Runs the command of the command line, and returns the exit code.
int run(int argc, char** argv) {
  CLI::App app("Lists, shows, checks, compares, removes and exports checkpoints.", "fsdp-ckpt");
  Asked asked;
  const Command* chosen = nullptr;
  for (const Command& each : kCommands) {
    CLI::App* command = app.add_subcommand(each.name, each.meaning);
    each.add_options(*command, asked);
    if (argc > 1 && std::string_view(argv[1]) == each.name) chosen = &each;
  }
  for (CLI::App* each : app.get_subcommands({})) each->footer(kExitCodes);
  app.footer(kExitCodes);
  app.require_subcommand(1);
  const std::span words(argv + 1, static_cast<size_t>(std::max(argc - 1, 0)));
  if (words.empty()) refuse_usage("no command is given", hint_for_commands({}));
  if (chosen != nullptr) {
    check_flags(words.subspan(1), *app.get_subcommand(chosen->name), usage_of(*chosen));
  } else {
    check_flags(words, app, hint_for_commands({}));
    const std::string_view typed = words.front();
    if (!typed.starts_with('-')) {
      refuse_usage(fmt::format("there is no command {}", quoted_name(typed)),
                   hint_for_commands(typed));
    }
  }
  const std::string hint = chosen == nullptr ? hint_for_commands({}) : usage_of(*chosen);
  if (!parse_or_help(app, argc, argv, hint)) return 0;
  if (chosen == nullptr) refuse_usage("the first word is not a command", hint_for_commands({}));
  const CLI::App& command = *app.get_subcommand(chosen->name);
  for (const CLI::Option* option : command.get_options()) {
    // An argument has no long name.
    if (option->get_lnames().empty() && option->count() > 0 && option->as<std::string>().empty()) {
      refuse_usage("a path is empty", usage_of(*chosen));
    }
  }
  return chosen->run(asked);
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const int code = fsdp::run(argc, argv);
    fsdp::flush_output();
    return code;
  });
}

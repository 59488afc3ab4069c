// fsdp-ckpt list FOLDER lists the checkpoints inside a folder. fsdp-ckpt verify PATH checks every
// byte of a checkpoint, or of all checkpoints inside a folder.
//
// Exit codes: 0 the checkpoints are listed, or are whole; 64 wrong usage; 65 a checkpoint is
// damaged; 74 cannot be read.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/found_checkpoints.h"
#include "programs/checkpoint_check.h"
#include "programs/checkpoint_listing.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"
#include "run/unknown_flags.h"

namespace fsdp {
namespace {

constexpr const char* kUsage = "use fsdp-ckpt list FOLDER or fsdp-ckpt verify PATH";

[[noreturn]] void refuse_usage(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .where = "command line", .hint = std::move(hint)},
                        ExitCode::kUsage);
}

// A search in a folder that does not exist finds no checkpoint, which would hide a wrong path.
void require_exists(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  throw IoError(ExitCode::kIoError, {.what = "cannot read the folder",
                                     .where = path.string(),
                                     .cause = error ? error.message() : "No such file or directory",
                                     .hint = "check the path"});
}

void list(const std::filesystem::path& folder) {
  require_exists(folder);
  if (is_checkpoint_folder(folder)) {
    refuse_usage(fmt::format("{} is a checkpoint", quoted_name(folder.string())),
                 "pass the folder that contains it, or use fsdp-ckpt verify or fsdp-inspect");
  }
  const FoundCheckpoints found = find_checkpoints(folder);
  if (found.of_run.empty() && found.damaged.empty()) {
    print(fmt::format("no checkpoint in {}\n", printable(folder.string())));
  } else {
    print(format_checkpoints(found));
  }
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
    throw IoError(ExitCode::kIoError,
                  {.what = "there is no checkpoint",
                   .where = path.string(),
                   .hint = "pass the folder of a checkpoint, or the folder of --save-dir"});
  }
  std::ranges::sort(folders, std::ranges::greater());
  return folders;
}

void verify(const std::filesystem::path& path) {
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
}

// The parsed command line. Both paths are empty if --help was printed.
struct Asked {
  std::string list;
  std::string verify;
};

// Refuses all unknown flags in one error. CLI11's parser would name only the first one.
void check_flags(int argc, char** argv) {
  std::vector<std::string> unknown;
  for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc)) {
    if (word == "--") break;
    if (word.starts_with('-') && word != "--help" && word != "-h") unknown.push_back(word);
  }
  if (!unknown.empty()) refuse_unknown(unknown, {.names = {"--help"}, .usage = kUsage});
}

Asked command_line(int argc, char** argv) {
  check_flags(argc, argv);
  constexpr const char* kExitCodes =
      "Exit codes: 0 listed or whole, 64 usage, 65 damaged, 74 cannot be read.";
  CLI::App app("Lists and checks checkpoints. fsdp-inspect shows the content of one.", "fsdp-ckpt");
  Asked asked;
  CLI::App* list = app.add_subcommand("list", "one line for each checkpoint, newest first");
  list->add_option("FOLDER", asked.list, "the folder with the checkpoints (--save-dir)")
      ->required();
  CLI::App* verify = app.add_subcommand("verify", "compares every byte with its hash");
  verify->add_option("PATH", asked.verify, "a checkpoint, or a folder with checkpoints")
      ->required();
  app.require_subcommand(1);
  for (CLI::App* each : {&app, list, verify}) each->footer(kExitCodes);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) refuse_usage(error.what(), kUsage);
    app.exit(error);
    return {};
  }
  if (asked.list.empty() && asked.verify.empty()) refuse_usage("the path is empty", kUsage);
  return asked;
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const fsdp::Asked asked = fsdp::command_line(argc, argv);
    if (!asked.list.empty()) fsdp::list(asked.list);
    if (!asked.verify.empty()) fsdp::verify(asked.verify);
    fsdp::flush_output();
  });
}

// The folder that a run leaves behind: an ordinary Hugging Face model with its results beside it.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/engine.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bert_qa/run/folder_lock.h"
#include "bert_qa/run/inputs.h"
#include "bert_qa/run/settings.h"
#include "terminal/console.h"

namespace bert_qa {

// The folders of a path that were not there before: made now, and removed at the end of a run that
// has left nothing in them. Move-only.
class NewFolders {
 public:
  // Errors: IoError kCannotCreate.
  explicit NewFolders(const std::filesystem::path& folder);
  NewFolders(NewFolders&&) noexcept = default;
  NewFolders& operator=(NewFolders&&) = delete;
  ~NewFolders();

 private:
  std::vector<std::filesystem::path> made_;  // innermost first
};

// --output-dir, held for this run alone while it lives. Of rank 0.
class OutputFolder {
 public:
  // Makes the folder, which a run that is refused takes away again; locks it, removes what killed
  // runs left of files half written, and sees that this run's files can be written, long before one
  // has to be. What a user should be told of that goes to `notes`.
  // Errors: IoError kCannotCreate if it cannot be made or written, another run holds it, a folder
  //   stands where a file has to go, or results are there and --overwrite-output-dir was not given;
  //   InvalidArgument kUsage if a model is to be written where the model is read.
  OutputFolder(const Settings& settings, std::vector<std::string>& notes);

 private:
  NewFolders folders_;
  FolderLock lock_;
};

// Where the model went.
struct SavedModel {
  std::filesystem::path folder;
  fsdp::Outcome refusal;  // why it is not the folder that was asked for, if it is not
};

// config.json, the weights in files of at most Settings::max_shard_bytes, and the tokenizer's three
// files. If they cannot be created in --output-dir any more, they go to a fresh folder beside it: a
// trained model is not thrown away, and the console says so. Collective; rank 0 writes, and the
// others wait as long as that takes.
// Errors: IoError on rank 0, RefusedElsewhere on the others.
SavedModel save_model(fsdp::Engine& engine, const Inputs& inputs, const Settings& settings,
                      terminal::Console& console);

// Ends the run with code 73 if the model is elsewhere than asked for. Collective.
void end_if_elsewhere(const fsdp::Mesh& mesh, const SavedModel& saved,
                      const std::filesystem::path& asked_for);

void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json);

}  // namespace bert_qa

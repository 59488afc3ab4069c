// Creates the output folder of a run. It becomes an ordinary Hugging Face model folder that also
// holds the results of the run.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/engine.h>

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bert_qa/run/inputs.h"
#include "bert_qa/run/settings.h"
#include "io/folder_lock.h"
#include "terminal/console.h"

namespace bert_qa {

// The folders of a path that did not exist. The constructor creates them. The destructor removes
// those that are empty. Move-only.
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

// The folder --output-dir. It is locked for this run while the object exists. Only rank 0 has one.
class OutputFolder {
 public:
  // Creates and locks the folder and removes incomplete files of killed runs. Checks that this run
  // will be able to write its files. If the constructor throws, it removes a folder that it
  // created. Adds notes for the user to `notes`.
  // Errors: IoError kCannotCreate if the folder cannot be created or written, if another run has
  //   locked it, if a folder has the name of a result, or if results exist without
  //   --overwrite-output-dir and the run does not continue an earlier one. InvalidArgument kUsage
  //   if the model would be written to the folder from which it is read.
  OutputFolder(const Settings& settings, std::vector<std::string>& notes);

  // Returns true if the run continues a run of --save-dir, whose log and results are in this
  // folder.
  bool continues_run() const { return continues_run_; }

 private:
  bool continues_run_;
  NewFolders folders_;
  fsdp::FolderLock lock_;
};

// The folder to which a model was written.
struct SavedModel {
  std::filesystem::path folder;
  fsdp::Outcome refusal;  // reason why the folder is not --output-dir; not failed if it is
};

// Writes config.json, the weights in files of at most Settings::max_shard_bytes, and the three
// files of the tokenizer. If the files can no longer be created in --output-dir, writes them to a
// new folder beside it and prints a note, so that a trained model is not lost. Collective; rank 0
// writes, and the other ranks wait without a time limit.
// Errors: IoError on rank 0, RefusedElsewhere on the others.
SavedModel save_model(fsdp::Engine& engine, const Inputs& inputs, const Settings& settings,
                      terminal::Console& console);

// Throws on all ranks, with exit code 73, if the model was not written to --output-dir. Collective.
void end_if_elsewhere(const fsdp::Mesh& mesh, const SavedModel& saved,
                      const std::filesystem::path& asked_for);

void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json);

}  // namespace bert_qa

// Creates the output folder of a run: an ordinary Hugging Face model, and the run's results.
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

// The folders of a path that did not exist. The constructor creates them; the destructor removes
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

// --output-dir, locked for this run while the object lives. Only rank 0 has one.
class OutputFolder {
 public:
  // Creates and locks the folder, removes half-written files of killed runs, and checks that this
  // run can write its files, long before it writes one. A refused run removes a folder that it
  // created. Adds notes for the user to `notes`.
  // Errors: IoError kCannotCreate if the folder cannot be created or written, another run holds it,
  //   a folder has the name of a result, or results exist without --overwrite-output-dir;
  //   InvalidArgument kUsage if the model would be written to the folder that it is read from.
  OutputFolder(const Settings& settings, std::vector<std::string>& notes);

 private:
  NewFolders folders_;
  FolderLock lock_;
};

// The folder of a written model.
struct SavedModel {
  std::filesystem::path folder;
  fsdp::Outcome refusal;  // why the folder is not --output-dir; not failed if it is
};

// Writes config.json, the weights in files of at most Settings::max_shard_bytes, and the
// tokenizer's three files. If they can no longer be created in --output-dir, they are written to a
// new folder beside it, so that a trained model is not lost, and the console prints a note.
// Collective; rank 0 writes, and the others wait without a time limit.
// Errors: IoError on rank 0, RefusedElsewhere on the others.
SavedModel save_model(fsdp::Engine& engine, const Inputs& inputs, const Settings& settings,
                      terminal::Console& console);

// Ends the run with code 73 if the model was not written to --output-dir. Collective.
void end_if_elsewhere(const fsdp::Mesh& mesh, const SavedModel& saved,
                      const std::filesystem::path& asked_for);

void write_json(const std::filesystem::path& file, const nlohmann::ordered_json& json);

}  // namespace bert_qa

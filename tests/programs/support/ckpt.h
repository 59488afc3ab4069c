// Runs fsdp-ckpt, and makes the checkpoints of its tests.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/found_checkpoints.h"
#include "io/support/small_manifest.h"
#include "io/support/whole_checkpoint.h"
#include "support/run_process.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"

namespace fsdp {

using testing::ProcessResult;
using testing::run_process;

// Not under sanitizers, because their own memory is many times that of the program.
inline constexpr bool kCkptMemoryIsLimited = !kSanitized;

inline std::string program_path(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

// Runs fsdp-ckpt after the limits, which are flags of the shell's ulimit.
inline ProcessResult run_ckpt_within(const std::string& limits,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"sh", "-c", "ulimit " + limits + "; exec \"$0\" \"$@\"",
                                   program_path("fsdp-ckpt")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command);
}

// Runs fsdp-ckpt with at most 16 MiB of allocations. Mapped files do not count.
inline ProcessResult run_ckpt(const std::vector<std::string>& arguments) {
  return run_ckpt_within(kCkptMemoryIsLimited ? "-d 16384" : "-c 0", arguments);
}

// Returns the text with the folder replaced by "ROOT".
inline std::string without_root(std::string text, const ScratchFolder& root) {
  const std::string path = root.path().string();
  for (size_t at = text.find(path); at != text.npos; at = text.find(path, at)) {
    text.replace(at, path.size(), "ROOT");
  }
  return text;
}

// Checks the code and the only line of the error.
inline void check_error(const ProcessResult& ending, int code, const std::string& text) {
  CAPTURE(ending.err);
  CHECK(ending.code == code);
  CHECK(ending.err.starts_with("fsdp: error[" + std::to_string(code) + "] rank 0/1 host "));
  CHECK(ending.err.find(text) != std::string::npos);
  CHECK(ending.err.find('\n') == ending.err.size() - 1);
}

// Returns the manifest of the step. Its run is 32 times the letter.
inline CheckpointManifest manifest_of_step(int64_t step, char run = 'b') {
  CheckpointManifest manifest = small_manifest();
  manifest.run = std::string(32, run);
  manifest.step = step;
  manifest.sequence = step / 100;
  manifest.resumed_from = -1;
  manifest.time = "2026-11-" + std::to_string(step / 100 + 10) + "T23:20:00Z";
  return manifest;
}

// Writes a checkpoint whose elements are all 'x'. Returns its folder.
inline std::filesystem::path write_checkpoint(const ScratchFolder& root,
                                              CheckpointManifest manifest) {
  const std::filesystem::path folder = folder_of_step(root.path(), manifest.step);
  WholeCheckpoint checkpoint{.manifest = std::move(manifest), .bytes = {}};
  for (const ManifestTensor& tensor : checkpoint.manifest.tensors) {
    checkpoint.bytes.emplace_back(static_cast<size_t>(tensor.numel() * bits_of(tensor.dtype) / 8),
                                  'x');
  }
  write_checkpoint(folder, std::move(checkpoint));
  return folder;
}

}  // namespace fsdp

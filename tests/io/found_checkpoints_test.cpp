#include "io/found_checkpoints.h"

#include <doctest/doctest.h>

#include "io/support/shard_files.h"
#include "io/support/small_manifest.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

// Writes the manifest of a checkpoint without shards.
void write_checkpoint(const ScratchFolder& root, CheckpointManifest manifest) {
  const std::filesystem::path folder = folder_of_step(root.path(), manifest.step);
  std::filesystem::create_directory(folder);
  write_manifest(folder, manifest);
}

CheckpointManifest manifest_of_step(int64_t step, int64_t sequence, std::string run,
                                    std::string time) {
  CheckpointManifest manifest = small_manifest();
  manifest.step = step;
  manifest.resumed_from = -1;
  manifest.sequence = sequence;
  manifest.run = std::move(run);
  manifest.time = std::move(time);
  return manifest;
}

std::vector<int64_t> steps_of(const std::vector<FoundCheckpoint>& checkpoints) {
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& each : checkpoints) steps.push_back(each.step);
  return steps;
}

TEST_CASE("a checkpoint's folder has the name of its step, with at least eight digits") {
  CHECK(folder_of_step("a/b", 1200) == "a/b/step-00001200");
  CHECK(folder_of_step("a", 1234567890) == "a/step-1234567890");
  CHECK(is_checkpoint_name("step-00001200"));
  CHECK(is_checkpoint_name("step-1234567890"));
  for (const char* name : {"step-1200", "step-0000120x", "step-", "", "xstep-00001200",
                           ".step-00001200.tmp.1", "step-00001200.old"}) {
    CHECK_FALSE(is_checkpoint_name(name));
  }
}

TEST_CASE("a folder is a checkpoint's by its name or by its manifest") {
  const ScratchFolder root;
  CHECK_FALSE(is_checkpoint_folder(root.path()));
  write_manifest(root.path(), small_manifest());
  CHECK(is_checkpoint_folder(root.path()));
  std::filesystem::create_directory(root / "step-00000001");
  CHECK(is_checkpoint_folder(root / "step-00000001"));
  CHECK(is_checkpoint_folder(root / "step-00000001/"));
  CHECK_FALSE(is_checkpoint_folder(root / "step-00000002"));
  CHECK_FALSE(is_checkpoint_folder(root.write("step-00000003", "a file")));
}

TEST_CASE("checkpoints of the run that wrote last are found first, newest first") {
  const ScratchFolder root;
  const std::string old_run(32, 'a'), new_run(32, 'b');
  write_checkpoint(root, manifest_of_step(900, 9, old_run, "2026-11-26T23:20:00Z"));
  write_checkpoint(root, manifest_of_step(200, 10, new_run, "2026-11-27T00:00:00Z"));
  write_checkpoint(root, manifest_of_step(300, 11, new_run, "2026-11-27T00:00:01Z"));
  const FoundCheckpoints found = find_checkpoints(root.path());
  CHECK(steps_of(found.of_run) == std::vector<int64_t>{300, 200});
  CHECK(steps_of(found.of_other_runs) == std::vector<int64_t>{900});
  CHECK(found.damaged.empty());
  const FoundCheckpoint& newest = found.of_run.front();
  CHECK(newest.folder == root / "step-00000300");
  CHECK(newest.run == new_run);
  CHECK(newest.sequence == 11);
  CHECK(newest.time == "2026-11-27T00:00:01Z");
  CHECK(newest.finite);
  CHECK(newest.world_size == 2);
  CHECK(newest.strategy == "full-shard");
  CHECK(newest.files == small_manifest().files);
}

TEST_CASE("a damaged checkpoint is found with its error; links and other names are ignored") {
  const ScratchFolder root;
  write_checkpoint(root, small_manifest());
  std::filesystem::create_directory(root / "step-00000001");
  std::filesystem::create_directory(root / "step-1");
  std::filesystem::create_directory(root / ".step-00000002.tmp.1");
  std::filesystem::create_directory_symlink(root / "step-00001200", root / "step-00000003");
  root.write("step-00000004", "a file");
  const FoundCheckpoints found = find_checkpoints(root.path());
  CHECK(steps_of(found.of_run) == std::vector<int64_t>{1200});
  CHECK(found.of_other_runs.empty());
  REQUIRE(found.damaged.size() == 1);
  CHECK(found.damaged[0].first == root / "step-00000001");
  CHECK(found.damaged[0].second.text().what == "manifest.json is missing");
  CHECK(folders_in(root.path()).size() == 4);
}

TEST_CASE("a missing folder has no checkpoints, and a file cannot be read as a folder") {
  const ScratchFolder root;
  const FoundCheckpoints found = find_checkpoints(root / "missing");
  CHECK((found.of_run.empty() && found.of_other_runs.empty() && found.damaged.empty()));
  const auto error = io_error_of([&] { find_checkpoints(root.write("file", "x")); });
  REQUIRE(error);
  CHECK(error->code() == ExitCode::kIoError);
  CHECK(error->text().what == "cannot read the folder of the checkpoints");
}

TEST_CASE("the retention rule keeps the newest finite checkpoints of a run") {
  FoundCheckpoints found;
  for (int64_t sequence = 1; sequence <= 6; ++sequence) {
    found.of_run.push_back({.run = "a",
                            .sequence = sequence,
                            .step = sequence * 10,
                            .finite = sequence != 2 && sequence != 5});
  }
  found.of_other_runs.push_back({.run = "b", .sequence = 1, .step = 5});
  const auto steps_beyond = [&](int64_t limit, const std::string& run) {
    return steps_of(checkpoints_beyond(limit, run, found));
  };
  CHECK(steps_beyond(2, "a") == std::vector<int64_t>{30, 20, 10});
  CHECK(steps_beyond(3, "a") == std::vector<int64_t>{20, 10});
  CHECK(steps_beyond(4, "a").empty());
  CHECK(steps_beyond(2, "b").empty());
  CHECK(steps_beyond(2, "c").empty());
}

}  // namespace
}  // namespace fsdp

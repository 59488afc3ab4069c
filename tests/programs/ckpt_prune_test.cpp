// Runs fsdp-ckpt prune as a user does.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "io/folder_lock.h"
#include "programs/support/ckpt.h"

namespace fsdp {
namespace {

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

TEST_CASE("fsdp-ckpt prune removes the oldest checkpoints of the run that saved last") {
  const ScratchFolder root;
  const std::filesystem::path folder = root / "checkpoints";
  const ScratchFolder elsewhere;
  write_checkpoint(elsewhere, manifest_of_step(600, 'b'));
  std::filesystem::create_directory(folder);
  const auto write = [&](int64_t step, char run) {
    std::filesystem::rename(write_checkpoint(root, manifest_of_step(step, run)),
                            folder_of_step(folder, step));
  };
  for (const int64_t step : {200, 300, 400, 500}) write(step, 'b');
  write(100, 'a');
  std::filesystem::create_directory(folder / "step-00000001");
  std::filesystem::create_directory(folder / "step-00000001" / "photos");
  std::filesystem::create_directory_symlink(elsewhere / "step-00000600", folder / "step-00000050");
  const std::vector<std::string> before = names_in(folder);

  const std::string would =
      "would remove step-00000300 (9.8 KiB)\n"
      "would remove step-00000200 (9.8 KiB)\n"
      "4 checkpoints of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 2 to remove, 19.5 KiB; 2 kept\n";
  const ProcessResult dry = run_ckpt({"prune", folder, "--keep", "2", "--dry-run"});
  CHECK(dry.code == 0);
  CHECK(dry.out == would);
  CHECK(names_in(folder) == before);
  {
    const FolderLock job(folder, ".fsdp.lock");
    check_error(run_ckpt({"prune", folder, "--keep", "2"}), 73,
                "another run writes into the folder (" + folder.string() + "); pid ");
    // A dry run takes no lock.
    CHECK(run_ckpt({"prune", folder, "--keep=2", "--dry-run"}).out == would);
  }
  CHECK(names_in(folder) == before);

  const ProcessResult pruned = run_ckpt({"prune", folder, "--keep", "2"});
  CHECK(pruned.code == 0);
  CHECK(pruned.err.empty());
  CHECK(pruned.out ==
        "removed step-00000300 (9.8 KiB)\n"
        "removed step-00000200 (9.8 KiB)\n"
        "4 checkpoints of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 2 removed, 19.5 KiB; 2 kept\n");
  CHECK(names_in(folder) == std::vector<std::string>{"step-00000001", "step-00000050",
                                                     "step-00000100", "step-00000400",
                                                     "step-00000500"});
  CHECK(std::filesystem::exists(folder / "step-00000001" / "photos"));
  CHECK(names_in(elsewhere / "step-00000600").size() == 6);
  CHECK(run_ckpt({"prune", folder, "--keep", "2"}).out ==
        "2 checkpoints of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 0 removed, 0 B; 2 kept\n");
}

TEST_CASE("fsdp-ckpt prune does not count checkpoints that are not finite") {
  const ScratchFolder root;
  for (const int64_t step : {100, 200, 300, 400}) {
    CheckpointManifest manifest = manifest_of_step(step);
    manifest.finite = step < 300;
    write_checkpoint(root, manifest);
  }
  CHECK(run_ckpt({"prune", root.path(), "--keep", "2"}).out ==
        "4 checkpoints of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 0 removed, 0 B; 4 kept\n");
}

TEST_CASE("fsdp-ckpt prune keeps a checkpoint whose folder has other files") {
  const ScratchFolder root;
  for (const int64_t step : {100, 200, 300, 400}) write_checkpoint(root, manifest_of_step(step));
  std::filesystem::create_directory(root / "step-00000100" / "export");
  const ProcessResult ending = run_ckpt({"prune", root.path(), "--keep", "2"});
  CHECK(ending.code == 0);
  CHECK(ending.out ==
        "removed step-00000200 (9.8 KiB)\n"
        "kept step-00000100, which has other files: 'export'\n"
        "4 checkpoints of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 1 removed, 9.8 KiB; 3 kept\n");
  CHECK(root.names() ==
        std::vector<std::string>{"step-00000100", "step-00000300", "step-00000400"});
}

TEST_CASE("fsdp-ckpt prune removes nothing if a checkpoint that it would keep is damaged") {
  const ScratchFolder root;
  for (const int64_t step : {100, 200, 300}) write_checkpoint(root, manifest_of_step(step));
  std::filesystem::remove(root / "step-00000300" / "shard-00001-of-00002.sum");
  const std::vector<std::string> before = root.names();
  for (const auto& flags : {std::vector<std::string>{}, {"--dry-run"}}) {
    std::vector<std::string> arguments{"prune", root.path(), "--keep", "2"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    check_error(run_ckpt(arguments), 65,
                "nothing was removed, because step-00000300 would be kept (" +
                    (root / "step-00000300" / "shard-00001-of-00002.sum").string() +
                    "); shard-00001-of-00002.sum is missing; hint: move this checkpoint out of "
                    "the folder, then prune again");
  }
  CHECK(root.names() == before);
}

TEST_CASE("fsdp-ckpt prune removes what a dead job has left unfinished") {
  const ScratchFolder root;
  write_checkpoint(root, manifest_of_step(100));
  std::filesystem::create_directory(root / ".step-00000200.tmp.1");
  root.write(".fsdp.lock", "pid 1 on host h\n");
  CHECK(run_ckpt({"prune", root.path(), "--keep", "2"}).out ==
        "note: a checkpoint that was not finished was removed (.step-00000200.tmp.1)\n"
        "1 checkpoint of run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb: 0 removed, 0 B; 1 kept\n");
  CHECK(root.names() == std::vector<std::string>{"step-00000100"});
}

TEST_CASE("fsdp-ckpt prune refuses wrong usage") {
  const ScratchFolder root;
  for (const char* keep : {"1", "0", "-1", "two", "2x", "", "99999999999999999999"}) {
    check_error(run_ckpt({"prune", root.path(), "--keep", keep}), 64,
                "--keep cannot be '" + std::string(keep) +
                    "' (command line); hint: use a whole number, 2 or more");
  }
  check_error(run_ckpt({"prune", root.path()}), 64,
              "--keep is required (command line); hint: use fsdp-ckpt prune FOLDER --keep N");
  check_error(run_ckpt({"prune", root / "missing", "--keep", "2"}), 74, "cannot read the folder");
  CHECK(root.names().empty());
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(100));
  check_error(run_ckpt({"prune", folder, "--keep", "2"}), 64, "' is a checkpoint");
  std::filesystem::remove_all(folder);
  CHECK(run_ckpt({"prune", root.path(), "--keep", "2"}).out ==
        "no checkpoint of a run, nothing to remove\n");
}

}  // namespace
}  // namespace fsdp

#include "io/support/recorded_disk.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>

#include "io/checked_shard.h"
#include "io/new_file.h"
#include "io/support/shard_files.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

using CallKind = RecordedCall::Kind;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    names.push_back(entry.path().lexically_relative(folder).string());
  }
  std::ranges::sort(names);
  return names;
}

// Saves as a checkpoint is saved: in a folder that is renamed when all is on disk.
BlockSums save_in_folder(Disk& disk, const std::filesystem::path& root) {
  const auto temporary = root / ".step.tmp";
  REQUIRE(disk.mkdir(temporary.c_str(), 0777) == 0);
  const BlockSums sums = write_shard(disk, temporary / "s.safetensors", small_shard(50));
  sync_names(disk, temporary);
  REQUIRE(disk.rename(temporary.c_str(), (root / "step").c_str()) == 0);
  sync_names(disk, root);
  return sums;
}

TEST_CASE("All calls replayed give the folder again") {
  const ScratchFolder folder, left;
  RecordedDisk disk(folder.path());
  save_in_folder(disk, folder.path());
  disk.replay(left.path(), {.calls = disk.calls().size()});
  CHECK(names_in(left.path()) == names_in(folder.path()));
  for (const char* name : {"step/s.safetensors", "step/s.sum"}) {
    CHECK(read_whole(left / name) == read_whole(folder / name));
  }
  std::vector<std::string> order;
  for (const RecordedCall& call : disk.calls()) {
    order.push_back(std::string(name_of(call.kind)) + " " + call.path.string());
  }
  CHECK(order == std::vector<std::string>{
                     "mkdir .step.tmp", "create .step.tmp/s.safetensors",
                     "fallocate .step.tmp/s.safetensors", "write .step.tmp/s.safetensors",
                     "write .step.tmp/s.safetensors", "fsync .step.tmp/s.safetensors",
                     "create .step.tmp/s.sum.part", "write .step.tmp/s.sum.part",
                     "fsync .step.tmp/s.sum.part", "rename .step.tmp/s.sum.part", "fsync .step.tmp",
                     "rename .step.tmp", "fsync "});
}

TEST_CASE("A prefix has the names and bytes of its calls") {
  const ScratchFolder folder, left;
  RecordedDisk disk(folder.path());
  save_in_folder(disk, folder.path());
  disk.replay(left.path(), {.calls = 4});
  CHECK(names_in(left.path()) == std::vector<std::string>{".step.tmp", ".step.tmp/s.safetensors"});
  CHECK(read_whole(left / ".step.tmp/s.safetensors").substr(0, 4096) ==
        read_whole(folder / "step/s.safetensors").substr(0, 4096));
}

TEST_CASE("Synced calls cannot be dropped; a folder's sync covers its names after a rename") {
  const ScratchFolder folder;
  RecordedDisk disk(folder.path());
  const int root = disk.open(folder.path().c_str(), O_RDONLY | O_DIRECTORY, 0);
  REQUIRE(disk.mkdir((folder / "a").c_str(), 0777) == 0);                     // 0
  write_new_file(disk, folder / "a/f", bytes_of("x"));                        // 1, 2, 3
  REQUIRE(disk.rename((folder / "a").c_str(), (folder / "b").c_str()) == 0);  // 4
  CHECK(disk.unsynced(5) == std::vector<size_t>{0, 1, 4});
  sync_names(disk, folder / "b");  // 5
  CHECK(disk.unsynced(3) == std::vector<size_t>{0, 1, 2});
  CHECK(disk.unsynced(6) == std::vector<size_t>{0, 4});
  REQUIRE(disk.fsync(root) == 0);  // 6
  disk.close(root);
  CHECK(disk.unsynced(7).empty());
  REQUIRE(disk.unlink((folder / "b/f").c_str()) == 0);  // 7
  REQUIRE(disk.rmdir((folder / "b").c_str()) == 0);     // 8
  CHECK(disk.unsynced(9) == std::vector<size_t>{7, 8});
  CHECK_THROWS_AS(disk.replay(folder.path(), {.calls = 9, .kept_bytes = {{4, 0}}}),
                  std::logic_error);
  const auto left_after = [&](const PowerLoss& loss) {
    const ScratchFolder left;
    disk.replay(left.path(), loss);
    return names_in(left.path());
  };
  CHECK(left_after({.calls = 9}).empty());
  CHECK(left_after({.calls = 9, .kept_bytes = {{7, 0}}}) == std::vector<std::string>{"b", "b/f"});
  CHECK(left_after({.calls = 9, .kept_bytes = {{8, 0}}}) == std::vector<std::string>{"b"});
  CHECK(left_after({.calls = 6, .kept_bytes = {{4, 0}}}) == std::vector<std::string>{"a", "a/f"});
  CHECK(left_after({.calls = 6, .kept_bytes = {{0, 0}, {4, 0}}}).empty());
  CHECK_THROWS_AS(disk.open("/", O_RDONLY, 0), std::logic_error);
}

TEST_CASE("Names that were there before the recording can be moved and removed") {
  const ScratchFolder folder, left;
  for (const ScratchFolder* each : {&folder, &left}) {
    std::filesystem::create_directory(*each / "old");
    each->write("old/f", "x");
  }
  RecordedDisk disk(folder.path());
  REQUIRE(disk.rename((folder / "old").c_str(), (folder / "new").c_str()) == 0);
  REQUIRE(disk.unlink((folder / "new/f").c_str()) == 0);
  disk.replay(left.path(), {.calls = disk.calls().size()});
  CHECK(names_in(left.path()) == std::vector<std::string>{"new"});
}

// Returns the number of states in which a whole `.sum` file is beside a shard that is not whole, or
// in which the final name has anything but whole files.
int64_t count_broken(const RecordedDisk& disk, const BlockSums& sums) {
  int64_t broken = 0;
  for_each_loss(disk, [&](const std::filesystem::path& left, const PowerLoss& loss) {
    const bool is_final = std::filesystem::exists(left / "step");
    const auto shard = left / (is_final ? "step" : ".step.tmp") / "s.safetensors";
    const auto error =
        io_error_of([&] { CheckedShard(shard, sums.file_bytes, sum_of(sums)).check_all(); });
    if (error) REQUIRE(error->code() == ExitCode::kCorruptData);
    std::error_code missing;
    const bool has_sums = std::filesystem::file_size(sums_path(shard), missing) ==
                              static_cast<uintmax_t>(sums_bytes(sums.file_bytes)) &&
                          hash_of(bytes_of(read_whole(sums_path(shard)))) == sum_of(sums);
    const bool at_end = loss.calls == disk.calls().size();
    // The loss may have dropped the shard's name, because the folder is synced later.
    const bool has_name = std::filesystem::exists(shard);
    broken += error && (is_final || at_end || (has_sums && has_name));
  });
  return broken;
}

TEST_CASE("No loss of power leaves a shard with sums that is not whole") {
  const ScratchFolder folder;
  RecordedDisk disk(folder.path());
  const BlockSums sums = save_in_folder(disk, folder.path());
  CHECK(count_broken(disk, sums) == 0);
}

TEST_CASE("Without any one of its syncs, a save can lose data") {
  for (size_t at = 0; at < 12; ++at) {
    const ScratchFolder folder;
    RecordedDisk disk(folder.path());
    const BlockSums sums = save_in_folder(disk, folder.path());
    if (disk.calls()[at].kind != CallKind::kSync) continue;
    disk.forget_call(at);
    CAPTURE(at);
    CHECK(count_broken(disk, sums) > 0);
  }
}

}  // namespace
}  // namespace fsdp

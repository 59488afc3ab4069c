// Saves in the background to a disk that is slowed down by the system.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <string>

#include "resume/small_training.h"
#include "support/control_group.h"
#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

std::string disk_of(const ScratchFolder& folder) {
  struct stat status {};
  REQUIRE(::stat(folder.path().c_str(), &status) == 0);
  return std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
}

}  // namespace

// The limit holds for writes around the page cache, as saves make them. A checkpoint of 40 MB takes
// 8 s, and twenty steps take less than a second.
TEST_CASE("a disk of 5 MB/s delays the saves, but not the steps" * doctest::skip(!is_long_run())) {
  const ScratchFolder folder;
  const std::string disk = disk_of(folder), rate = std::to_string(5'000'000);
  const ControlGroup slow({"blkio.throttle.write_bps_device", disk + " " + rate},
                          {"io.max", disk + " wbps=" + rate});
  if (!slow.works()) {
    MESSAGE("skipped: this process cannot limit the rate of the disk");
    return;
  }
  Words command = small_training(
      folder, 40,
      {"--ballast", "3300000", "--save-steps", "20", "--save-async", "true", "--pause-ms", "5"});
  command.insert(command.begin(), {"sh", "-c", slow.enter() + "exec \"$0\" \"$@\""});
  Process process(command);
  REQUIRE(process.read_until("step 39 "));
  CHECK(saves_in_progress(folder).size() == 1);
  CHECK(std::ranges::count(checkpoints_in(folder), "step-00000020") == 0);
  const ProcessResult result = process.wait();
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.err.find("still writing the checkpoint after 5 s") != std::string::npos);
  CHECK(checkpoints_in(folder) == Words{"step-00000020", "step-00000040"});
}

}  // namespace fsdp::testing

#include "io/new_file.h"

#include <doctest/doctest.h>

#include <cerrno>

#include "io/support/failing_disk.h"
#include "io/support/shard_files.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

TEST_CASE("A small file of a checkpoint is written whole, or its error names it") {
  for (int64_t at = 0; at < 4; ++at) {
    CAPTURE(at);
    const auto error_with = [&](int error) {
      const ScratchFolder folder;
      FailingDisk disk(at, error);
      const int64_t descriptors = count_descriptors();
      const auto failure =
          io_error_of([&] { write_new_file(disk, folder / "f", bytes_of("abc")); });
      CHECK(count_descriptors() == descriptors);
      if (!failure) CHECK(read_whole(folder / "f") == "abc");
      if (failure) CHECK(failure->text().where.starts_with((folder / "f").string()));
      return failure ? failure->code() : ExitCode::kOk;
    };
    CHECK(error_with(ENOSPC) == ExitCode::kIoError);
    CHECK(error_with(EIO) == ExitCode::kIoError);
    CHECK(error_with(EROFS) == (at == 0 ? ExitCode::kCannotCreate : ExitCode::kIoError));
    CHECK(error_with(EINTR) == ExitCode::kOk);
    CHECK(error_with(FailingDisk::kShortWrite) == ExitCode::kOk);
  }
}

TEST_CASE("A missing folder is named with a hint") {
  const ScratchFolder folder;
  const auto path = folder / "none" / "f";
  CHECK(text_of_error([&] { write_new_file(Disk::system(), path, {}); }) ==
        "cannot create the file (" + path.string() +
            "); No such file or directory; hint: create the folder first");
}

TEST_CASE("The names of a folder are synced, or its error names it") {
  const ScratchFolder folder;
  const auto said = [&](int64_t at, int error) {
    FailingDisk disk(at, error);
    const int64_t descriptors = count_descriptors();
    const std::string text = text_of_error([&] { sync_names(disk, folder.path()); });
    CHECK(count_descriptors() == descriptors);
    return text;
  };
  const std::string where = " (" + folder.path().string() + "); Input/output error";
  CHECK(said(FailingDisk::kNever, 0) == "accepted");
  CHECK(said(0, EIO) == "cannot open the folder to sync it" + where);
  CHECK(said(1, EIO) == "cannot sync the folder" + where);
  CHECK(said(1, EINVAL) == "accepted");  // a file system that cannot sync folders
  for (const int64_t at : {0, 1, 2}) CHECK(said(at, EINTR) == "accepted");
}

}  // namespace
}  // namespace fsdp

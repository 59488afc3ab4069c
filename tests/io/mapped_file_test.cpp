#include "io/mapped_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "fsdp/error.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

std::string mapping_refusal(const std::filesystem::path& path) {
  try {
    const MappedFile file(path);
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kIoError);
    CHECK(error.text().where == path.string());
    return error.text().cause;
  }
  return "accepted";
}

TEST_CASE("A file's bytes are mapped, also none, and survive its replacement") {
  const ScratchFolder folder;
  folder.write("f", std::string("a\0b", 3));
  MappedFile file(folder / "f");
  CHECK(file.text() == std::string_view("a\0b", 3));
  CHECK(MappedFile(folder.write("empty", "")).bytes().empty());

  std::filesystem::rename(folder.write("new", "xyz"), folder / "f");
  CHECK(file.text() == std::string_view("a\0b", 3));
  MappedFile moved = std::move(file);
  CHECK(moved.text().size() == 3);
  file = MappedFile(folder / "f");
  CHECK(file.text() == "xyz");
}

TEST_CASE("What is no regular file is refused at once") {
  const ScratchFolder folder;
  CHECK(mapping_refusal(folder / "missing") == "No such file or directory");
  CHECK(mapping_refusal(folder.path()) == "it is a folder");
  CHECK(mapping_refusal("/dev/zero") == "it is not a regular file");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(mapping_refusal(folder / "pipe") == "it is not a regular file");
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  CHECK(mapping_refusal(folder / "loop") == "Too many levels of symbolic links");
}

}  // namespace
}  // namespace fsdp

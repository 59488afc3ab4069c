#include "io/folder_lock.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "fsdp/error.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

std::string lock_refusal(const ScratchFolder& folder) {
  try {
    const FolderLock second(folder.path(), ".lock");
    return "granted";
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCannotCreate);
    return error.what();
  }
}

TEST_CASE("a folder is held by one, who is named to the second, and leaves nothing") {
  const ScratchFolder folder;
  {
    const FolderLock first(folder.path(), ".lock");
    CHECK_FALSE(first.note());
    const std::string text = lock_refusal(folder);
    CHECK(text.starts_with(std::string("another run writes into the folder (") +
                           folder.path().string() + "); pid " + std::to_string(::getpid()) +
                           " on host "));
    CHECK(text.find(" holds the lock file .lock; hint: wait until that run ends") !=
          std::string::npos);
  }
  CHECK(folder.names().empty());
  CHECK(lock_refusal(folder) == "granted");
}

TEST_CASE("a holder that is killed holds no longer; its file is taken over and then removed") {
  const ScratchFolder folder;
  std::array<int, 2> ready{};
  REQUIRE(::pipe(ready.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder.path(), ".lock");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK(lock_refusal(folder).find("; pid " + std::to_string(child) + " on host ") !=
        std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(folder.names().size() == 1);
  CHECK(lock_refusal(folder) == "granted");
  CHECK(folder.names().empty());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a lock moves with its owner, and survives the folder") {
  const ScratchFolder folder;
  const std::filesystem::path inner = folder / "inner";
  std::filesystem::create_directory(inner);
  FolderLock first(inner, ".lock");
  const FolderLock second(std::move(first));
  CHECK_THROWS_AS(FolderLock(inner, ".lock"), IoError);
  std::filesystem::remove_all(inner);
  std::filesystem::create_directory(inner);
  const FolderLock third(inner, ".lock");  // a folder of the same name elsewhere
}

TEST_CASE("a folder that is missing or has a link for a lock is refused") {
  const ScratchFolder folder;
  CHECK_THROWS_AS(FolderLock(folder / "nowhere", ".lock"), IoError);
  std::filesystem::create_symlink(folder / "target", folder / ".lock");
  CHECK_THROWS_AS(FolderLock(folder.path(), ".lock"), IoError);
  CHECK_FALSE(std::filesystem::exists(folder / "target"));
}

}  // namespace
}  // namespace fsdp

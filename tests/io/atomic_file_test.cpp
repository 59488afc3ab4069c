#include "io/atomic_file.h"

#include <doctest/doctest.h>
#include <fsdp/safetensors.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "fsdp/error.h"
#include "fsdp/whole_file.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

// Limits the size of this process's files while the object exists. It imitates a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int);
};

template <typename Call>
IoError io_error(const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    return error;
  }
  FAIL("no IoError");
  throw 0;
}

TEST_CASE("A file appears whole at commit and the old one stays until then") {
  const ScratchFolder folder;
  folder.write("f", "old");
  {
    AtomicFile file(folder / "f");
    file.write_at(3, bytes_of("def"));
    file.write_at(0, bytes_of("abc"));
    CHECK(read_whole(folder / "f") == "old");
    file.commit();
    CHECK(read_whole(folder / "f") == "abcdef");
    CHECK_THROWS_AS(file.commit(), StateError);
    CHECK_THROWS_AS(file.write_at(0, bytes_of("x")), StateError);
  }
  CHECK(read_whole(folder / "f") == "abcdef");
  CHECK(folder.names() == std::vector<std::string>{"f"});
}

TEST_CASE("A file that is not committed leaves nothing") {
  const ScratchFolder folder;
  folder.write("f", "old");
  {
    AtomicFile file(folder / "f");
    file.write_at(0, bytes_of("new"));
    AtomicFile moved = std::move(file);
    CHECK(folder.names().size() == 2);
  }
  CHECK(folder.names() == std::vector<std::string>{"f"});
  CHECK(read_whole(folder / "f") == "old");
}

TEST_CASE("Two writers of one name do not meet") {
  const ScratchFolder folder;
  AtomicFile one(folder / "f"), two(folder / "f");
  one.write_at(0, bytes_of("one"));
  two.write_at(0, bytes_of("two"));
  one.commit();
  CHECK(read_whole(folder / "f") == "one");
  two.commit();
  CHECK(read_whole(folder / "f") == "two");
  CHECK(folder.names() == std::vector<std::string>{"f"});
}

TEST_CASE("A path without a folder part is written to the current folder") {
  const ScratchFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file("here", "content");
  std::filesystem::current_path(before);
  CHECK(read_whole(folder / "here") == "content");
}

// Runs a process that ends between its first write and its commit.
void die_while_writing(const std::filesystem::path& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(path);
    file.write_at(0, bytes_of("half"));
    ::_exit(0);  // no destructor runs
  }
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("What a dead writer left is removed; a living one's file, and what is not ours, stays") {
  const ScratchFolder folder;
  die_while_writing(folder / "f");
  die_while_writing(folder / "g");
  REQUIRE(folder.names().size() == 2);
  const std::string of_g = folder.names()[1];
  for (const char* name : {".f.tmp", ".f.tmp.1", ".f.tmp.1.x", ".f.tmp.1.2.3", "f.tmp.1.2"}) {
    folder.write(name, "not ours");
  }
  AtomicFile living(folder / "f");
  living.write_at(0, bytes_of("whole"));
  const std::vector<std::string> before = folder.names();
  const auto is_f = [](std::string_view name) { return name == "f"; };
  const auto is_g = [](std::string_view name) { return name == "g"; };
  const std::vector<std::string> removed = remove_leftovers(folder.path(), is_f);
  REQUIRE(removed.size() == 1);
  CHECK(removed[0].starts_with(".f.tmp."));
  CHECK(folder.names().size() == before.size() - 1);
  CHECK(remove_leftovers(folder.path(), is_f).empty());
  CHECK(remove_leftovers(folder.path(), is_g) == std::vector{of_g});
  living.commit();
  CHECK(read_whole(folder / "f") == "whole");
  CHECK(remove_leftovers(folder / "nowhere", is_f).empty());
}

TEST_CASE("What cannot be created is code 73 with the reason") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder / "sub");
  folder.write("plain", "x");
  struct Case {
    std::filesystem::path path;
    std::string cause;
  };
  const Case cases[] = {
      {folder / "missing/f", "No such file or directory; hint: create the folder first"},
      {folder / "plain/f", "Not a directory; hint: create the folder first"},
      {folder / "sub", "Is a directory"},
      {folder / "sub/", "Is a directory"},
      {folder / std::string(300, 'n'), "File name too long"},
      {"/proc/f", ""},
  };
  for (const auto& [path, cause] : cases) {
    CAPTURE(path.string());
    const IoError error = io_error([&] { write_file(path, "x"); });
    CHECK(error.code() == ExitCode::kCannotCreate);
    const std::string expected = "cannot create the file (" + path.string() + "); " + cause;
    CHECK(std::string(error.what()).starts_with(expected));
  }
  if (::geteuid() != 0) {  // root may write everywhere
    std::filesystem::permissions(
        folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
    const IoError error = io_error([&] { write_file(folder / "f", "x"); });
    CHECK(error.code() == ExitCode::kCannotCreate);
    CHECK(error.text().hint == "choose a writable folder");
  }
}

TEST_CASE("A write that does not fit keeps the old file and leaves nothing else") {
  const ScratchFolder folder;
  folder.write("model.safetensors", "the old model");
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{100}, rlim_t{4096}, rlim_t{99'999}}) {
    CAPTURE(limit);
    const FileSizeLimit full(limit);
    const IoError error = io_error([&] {
      SafetensorsWriter writer(folder / "model.safetensors", {{"w", StoredDType::kU8, {100'000}}});
      writer.append("w", std::vector<std::byte>(100'000));
      writer.commit();
    });
    CHECK(error.code() == ExitCode::kIoError);
    CHECK(error.text().what == "cannot write the file");
    CHECK(error.text().cause == "File too large");
    CHECK(error.text().where.find("model.safetensors, byte ") != std::string::npos);
    CHECK(read_whole(folder / "model.safetensors") == "the old model");
    CHECK(folder.names() == std::vector<std::string>{"model.safetensors"});
  }
}

}  // namespace
}  // namespace fsdp

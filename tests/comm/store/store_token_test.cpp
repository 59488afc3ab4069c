#include "comm/store/store_token.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "fsdp/error.h"
#include "support/run_process.h"

namespace fsdp {
namespace {

bool has_part(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Writes a file of `bytes` bytes with the mode, and returns the error of reading it as a token.
std::string refusal_of_file(const std::string& path, size_t bytes, mode_t mode) {
  std::ofstream(path, std::ios::trunc) << std::string(bytes, 't');
  chmod(path.c_str(), mode);
  try {
    const StoreToken token = read_token({.job_token_file = path});
    CHECK(token.key == std::string(bytes, 't'));
    CHECK(token.source == "FSDP_JOB_TOKEN_FILE=" + path);
    CHECK(token.is_secret);
  } catch (const InvalidArgument& error) {
    CHECK(error.exit_code() == 78);
    CHECK(has_part(error.what(), "the job's token file " + path + " cannot be used"));
    CHECK(has_part(error.what(), "head -c 32 /dev/urandom > " + path + "; chmod 600 " + path));
    return error.text().cause;
  }
  return {};
}

TEST_CASE("a token is a private file of this user with at least 32 bytes") {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.path() + "/token";
  CHECK(refusal_of_file(path, 32, 0600).empty());
  CHECK(refusal_of_file(path, 4096, 0600).empty());
  CHECK(refusal_of_file(path, 31, 0600) == "it has 31 bytes, expected 32 to 4096");
  CHECK(refusal_of_file(path, 4097, 0600) == "it has more than 4096 bytes, expected 32 to 4096");
  for (const mode_t mode : {0640, 0604, 0620, 0644}) {
    CAPTURE(mode);
    CHECK(has_part(refusal_of_file(path, 32, mode), "so other users may read it"));
  }
  CHECK(refusal_of_file(path, 32, 0600).empty());
  if (geteuid() == 0) {
    REQUIRE(chown(path.c_str(), 12345, 0) == 0);
    CHECK(refusal_of_file(path, 32, 0600) == "it belongs to user 12345");
  }
  CHECK_THROWS_WITH_AS(read_token({.job_token_file = folder.path() + "/none"}),
                       doctest::Contains("No such file"), InvalidArgument);
  CHECK_THROWS_WITH_AS(read_token({.job_token_file = folder.path()}),
                       doctest::Contains("it is not a regular file"), InvalidArgument);
}

TEST_CASE("a job names a token, or says that it needs none") {
  CHECK_THROWS_WITH_AS(
      read_token({}),
      doctest::Contains("ranks of several hosts need a token, but FSDP_JOB_TOKEN_FILE is not set"),
      InvalidArgument);
  const StoreToken none = read_token({.no_token = true});
  CHECK(none.key == std::string(32, '\0'));
  CHECK_FALSE(none.is_secret);
  CHECK(none.source == "FSDP_NO_TOKEN=1");
  CHECK_THROWS_WITH_AS(read_token({.job_token_file = "/t", .no_token = true}),
                       doctest::Contains("both FSDP_JOB_TOKEN_FILE and FSDP_NO_TOKEN=1 are set"),
                       InvalidArgument);
}

}  // namespace
}  // namespace fsdp

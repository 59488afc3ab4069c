#include "comm/store/store_token.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr size_t kLeastTokenBytes = 32, kMostTokenBytes = 4096;

[[noreturn]] void refuse_token(std::string what, const std::string& file, std::string cause) {
  throw InvalidArgument(
      {.what = std::move(what),
       .where = "FSDP_JOB_TOKEN_FILE",
       .cause = std::move(cause),
       .hint =
           fmt::format("make a token, and copy it to every host: head -c 32 /dev/urandom > {0}; "
                       "chmod 600 {0}",
                       file.empty() ? "FILE" : file)});
}

// Returns the reason why the open file may not hold a token, or an empty string.
std::string fault_of_file(const Descriptor& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return std::strerror(errno);
  if (!S_ISREG(status.st_mode)) return "it is not a regular file";
  if (status.st_uid != geteuid()) return fmt::format("it belongs to user {}", status.st_uid);
  if ((status.st_mode & 077) != 0) {
    return fmt::format("its mode is {:o}, so other users may read it", status.st_mode & 0777);
  }
  return {};
}

}  // namespace

StoreToken read_token(const LaunchEnvironment& environment) {
  const std::string& path = environment.job_token_file;
  if (environment.no_token && !path.empty()) {
    refuse_token("both FSDP_JOB_TOKEN_FILE and FSDP_NO_TOKEN=1 are set", path,
                 "a job has a token, or it has none");
  }
  if (environment.no_token) {
    return {.key = std::string(kLeastTokenBytes, '\0'),
            .source = "FSDP_NO_TOKEN=1",
            .is_secret = false};
  }
  if (path.empty()) {
    refuse_token("ranks of several hosts need a token, but FSDP_JOB_TOKEN_FILE is not set", path,
                 "without a token, any process that reaches MASTER_PORT could join the job; "
                 "FSDP_NO_TOKEN=1 allows this on a private network");
  }
  const auto refuse = [&](std::string cause) {
    refuse_token(fmt::format("the job's token file {} cannot be used", path), path,
                 std::move(cause));
  };
  // O_NONBLOCK: a pipe must not block the open.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) refuse(std::strerror(errno));
  if (std::string fault = fault_of_file(file); !fault.empty()) refuse(std::move(fault));
  std::string key(kMostTokenBytes + 1, '\0');
  const ssize_t got = read(file.get(), key.data(), key.size());
  if (got < 0) refuse(std::strerror(errno));
  key.resize(static_cast<size_t>(got));
  if (key.size() < kLeastTokenBytes || key.size() > kMostTokenBytes) {
    refuse(fmt::format("it has {}{} bytes, expected {} to {}",
                       key.size() > kMostTokenBytes ? "more than " : "",
                       std::min(key.size(), kMostTokenBytes), kLeastTokenBytes, kMostTokenBytes));
  }
  return {.key = std::move(key), .source = fmt::format("FSDP_JOB_TOKEN_FILE={}", path)};
}

}  // namespace fsdp

#include "rank_logs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "fsdp/error.h"

namespace fsdp {

std::string RankLogs::path(int rank, const char* stream) const {
  const std::string attempt = place_.attempt > 0 ? fmt::format(".{}", place_.attempt) : "";
  return fmt::format("{}/rank-{}{}.{}", place_.folder, rank, attempt, stream);
}

void RankLogs::create_folder() const {
  if (!exist()) return;
  std::error_code error;
  std::filesystem::create_directories(place_.folder, error);
  if (!error && access(place_.folder.c_str(), W_OK) == 0) return;
  throw IoError(ExitCode::kCannotCreate, {.what = "the log folder cannot be written",
                                          .where = place_.folder,
                                          .cause = error ? error.message() : std::strerror(errno),
                                          .hint = "choose another --log-dir"});
}

void RankLogs::redirect(int rank) const {
  if (!exist()) return;
  const auto redirect = [&](const char* stream, int fd) {
    const int file =
        open(path(rank, stream).c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    if (file >= 0) dup2(file, fd);
  };
  redirect("out", STDOUT_FILENO);
  redirect("err", STDERR_FILENO);
}

std::string RankLogs::error_of(int root, int code, RankRange ranks) const {
  if (!exist()) return {};
  std::string found;
  const auto look = [&](int rank, std::string_view begin) {
    std::ifstream file(path(rank, "err"));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(begin)) found = line;
    }
  };
  look(root, "fsdp: error[");
  if (code == static_cast<int>(ExitCode::kPeerFailed)) return found;
  const std::string same = fmt::format("fsdp: error[{}] ", code);
  for (int rank = ranks.begin; ranks.contains(rank) && found.empty(); ++rank) look(rank, same);
  return found;
}

void RankLogs::write_ends(const std::vector<RankEnd>& ends) const {
  if (!exist()) return;
  const std::string host = place_.host < 0 ? "" : fmt::format("-host-{}", place_.host);
  const std::string path = fmt::format("{}/ends{}.jsonl", place_.folder, host);
  std::ofstream file(path, place_.attempt > 0 ? std::ios::app : std::ios::trunc);
  for (const RankEnd& each : ends) {
    const bool killed = WIFSIGNALED(each.wait_status);
    file
        << fmt::format(
               R"({{"attempt": {}, "rank": {}, "pid": {}, "{}": {}, "first": {}, "by_launcher": {}}})",
               place_.attempt, each.rank, each.pid, killed ? "signal" : "code",
               killed ? WTERMSIG(each.wait_status) : WEXITSTATUS(each.wait_status), each.is_first,
               each.by_launcher)
        << '\n';
  }
  if (file.flush()) return;
  throw IoError(ExitCode::kIoError,
                {.what = "cannot write the report on how the ranks ended",
                 .where = path,
                 .cause = std::strerror(errno),
                 .hint = "read the exit code and the lines above instead: both are complete"});
}

}  // namespace fsdp

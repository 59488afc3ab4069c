#include "bert_qa/run/train_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/whole_file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void fail(fsdp::ExitCode code, const char* what, const std::string& where, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw fsdp::IoError(
      full ? fsdp::ExitCode::kIoError : code,
      {.what = what,
       .where = where,
       .cause = std::generic_category().message(error),
       .hint = full ? "free some space, or raise the file size limit (ulimit -f)" : ""});
}

// Returns the step of a line, or nothing if the line is not valid.
std::optional<int64_t> step_of(const std::string& line) {
  const ordered_json json = ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto step = json.is_object() ? json.find("step") : json.end();
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  return step->get<int64_t>();
}

// Returns "2 later lines were dropped".
std::string counted(int64_t count, std::string_view which, std::string_view what) {
  return fmt::format("{} {} {} {}", count, which, count == 1 ? "line was" : "lines were", what);
}

// The lines of a log that stay when a run resumes.
struct KeptLines {
  std::string text;
  int64_t count = 0;
  int64_t later = 0;    // dropped, of later steps
  int64_t damaged = 0;  // dropped, not valid
};

KeptLines lines_up_to(int64_t step, std::istream& log) {
  KeptLines kept;
  for (std::string line; std::getline(log, line);) {
    const bool is_whole = !log.eof();  // it ends with a line break
    const std::optional<int64_t> of_line = is_whole ? step_of(line) : std::nullopt;
    if (!of_line) {
      ++kept.damaged;
    } else if (*of_line > step) {
      ++kept.later;
    } else {
      ++kept.count;
      kept.text += line + '\n';
    }
  }
  return kept;
}

int open_log(const std::filesystem::path& path, int flags) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | flags, 0666);
  if (file < 0) {
    fail(fsdp::ExitCode::kCannotCreate, "the training log cannot be created", path, errno);
  }
  return file;
}

}  // namespace

TrainLog::TrainLog(std::filesystem::path file)
    : path_(std::move(file)), file_(open_log(path_, O_TRUNC)) {}

TrainLog::TrainLog(std::filesystem::path file, int64_t step, std::string& note)
    : path_(std::move(file)) {
  KeptLines kept;
  if (std::filesystem::exists(path_)) {
    std::ifstream log(path_, std::ios::binary);
    kept = lines_up_to(step, log);
    if (!log.eof()) {
      fail(fsdp::ExitCode::kIoError, "the training log cannot be read", path_, errno);
    }
  }
  if (kept.later + kept.damaged > 0) fsdp::write_file(path_, kept.text);
  file_ = open_log(path_, /*flags=*/0);
  bytes_ = std::ssize(kept.text);
  note = fmt::format("{}: continued after step {}, {}", path_.filename().string(), step,
                     counted(kept.later, "later", "dropped"));
  if (kept.damaged > 0) note += ", " + counted(kept.damaged, "damaged", "dropped");
  if (kept.count < step) note += ", " + counted(step - kept.count, "earlier", "missing");
}

TrainLog::~TrainLog() { ::close(file_); }

void TrainLog::append(const training::StepRecord& record) {
  const std::string line = training::fields_of(record).dump() + '\n';
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // Remove the partial line, so that every remaining line is valid JSON.
      [[maybe_unused]] const int cut = ::ftruncate(file_, bytes_);
      fail(fsdp::ExitCode::kIoError, "the training log cannot be written", path_, error);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += std::ssize(line);
}

}  // namespace bert_qa

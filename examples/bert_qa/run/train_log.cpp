#include "bert_qa/run/train_log.h"

#include <fcntl.h>
#include <fsdp/error.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

// Returns null for NaN and infinity, because JSON has no such numbers. Programs that plot a curve
// skip null.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

[[noreturn]] void fail(fsdp::ExitCode code, const char* what, const std::string& where, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw fsdp::IoError(
      full ? fsdp::ExitCode::kIoError : code,
      {.what = what,
       .where = where,
       .cause = std::generic_category().message(error),
       .hint = full ? "free some space, or raise the file size limit (ulimit -f)" : ""});
}

}  // namespace

TrainLog::TrainLog(std::filesystem::path file)
    : path_(std::move(file)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    fail(fsdp::ExitCode::kCannotCreate, "the training log cannot be created", path_, errno);
  }
}

TrainLog::~TrainLog() { ::close(file_); }

void TrainLog::append(const StepRecord& record) {
  ordered_json memory;
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<fsdp::MemoryCategory>(i);
    memory[std::string(fsdp::name_of(category))] = record.peak[category];
  }
  ordered_json record_json = {{"step", record.step},
                              {"loss", number(record.loss)},
                              {"grad_norm", number(record.grad_norm)},
                              {"lr", record.lr},
                              {"samples_per_second", record.samples_per_second()},
                              {"exposed_comm_ms", record.exposed_comm_ms},
                              {"input_ms", record.input_ms},
                              {"skipped", record.skipped},
                              {"memory_bytes", memory},
                              {"sent_bytes", record.sent.total_bytes()}};
  if (!record.first_nonfinite.empty()) record_json["first_nonfinite"] = record.first_nonfinite;
  const std::string line = record_json.dump() + '\n';
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

#include "train_log.h"

#include <fsdp/error.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace bert_qa {
namespace {

using nlohmann::ordered_json;

// JSON has no NaN and no infinity; null is what readers of a curve skip.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

}  // namespace

TrainLog::TrainLog(std::filesystem::path file) : path_(std::move(file)), file_(path_) {
  if (!file_) {
    throw fsdp::IoError(fsdp::ExitCode::kCannotCreate,
                        {.what = "the training log cannot be created", .where = path_.string()});
  }
}

void TrainLog::append(const StepRecord& record) {
  ordered_json memory;
  for (int i = 0; i < fsdp::kMemoryCategories; ++i) {
    const auto category = static_cast<fsdp::MemoryCategory>(i);
    memory[std::string(fsdp::name_of(category))] = record.peak[category];
  }
  const ordered_json line = {{"step", record.step},
                             {"loss", number(record.loss)},
                             {"grad_norm", number(record.grad_norm)},
                             {"lr", record.lr},
                             {"samples_per_second", record.samples_per_second()},
                             {"exposed_comm_ms", record.exposed_comm_ms},
                             {"input_ms", record.input_ms},
                             {"skipped", record.skipped},
                             {"memory_bytes", memory}};
  file_ << line.dump() << '\n' << std::flush;
  if (!file_) {
    throw fsdp::IoError(fsdp::ExitCode::kIoError,
                        {.what = "the training log cannot be written", .where = path_.string()});
  }
}

}  // namespace bert_qa

#include "programs/doctor/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fsdp::doctor {
namespace {

constexpr int kSomethingFails = 1;

void append(std::vector<Finding>& all, std::vector<Finding> part) {
  std::ranges::move(part, std::back_inserter(all));
}

}  // namespace

std::vector<Finding> judge(const Facts& facts, DeviceKind device) {
  std::vector<Finding> findings = judge_host(facts, device);
  append(findings, judge_environment(facts, device));
  if (device != DeviceKind::kCpu) append(findings, judge_gpus(facts, device));
  return findings;
}

Verdict verdict_of(const Facts& facts, DeviceKind device, const std::vector<Finding>& findings) {
  // If a required GPU is missing, the program prints an error line with the reason instead of a
  // verdict.
  const bool has_gpu = device != DeviceKind::kCpu && !why_no_gpu(facts.cuda);
  if (!has_gpu && device == DeviceKind::kCuda) {
    return {.code = static_cast<int>(ExitCode::kConfiguration)};
  }
  const auto fails = std::ranges::count(findings, State::kFails, &Finding::state);
  if (fails > 0) {
    return {.code = kSomethingFails,
            .line = fails == 1 ? "one finding makes runs fail"
                               : fmt::format("{} findings make runs fail", fails)};
  }
  if (!has_gpu) return {.line = "ready on the CPU"};
  const size_t gpus = facts.cuda.gpus.size();
  return {.line = gpus == 1 ? "ready on one GPU" : fmt::format("ready on {} GPUs", gpus)};
}

}  // namespace fsdp::doctor

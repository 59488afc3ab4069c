#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "comm/nccl/nccl_library.h"
#include "fsdp/program_text.h"
#include "programs/doctor/judge.h"

namespace fsdp::doctor {
namespace {

// A value of an environment variable that harms runs, and what fsdp-doctor reports about it.
struct Rule {
  std::string_view name;
  std::string_view value;
  State state;
  std::string_view consequence;
  std::string_view remedy;
};

constexpr Rule kRules[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1", State::kNote,
     "all streams share one queue of the GPU: no gather runs beside compute",
     "unset it (scripts for Megatron set it)"},
    {"CUDA_LAUNCH_BLOCKING", "1", State::kNote,
     "every launch waits for its kernel: nothing runs beside compute",
     "unset it, unless you look for a failing kernel"},
    {"CUDA_VISIBLE_DEVICES", "", State::kNote, "it hides all GPUs",
     "unset it, or list the GPUs to use: 0,1"},
    {"CUDA_VISIBLE_DEVICES", "-1", State::kNote, "it hides all GPUs",
     "unset it, or list the GPUs to use: 0,1"},
    {"NCCL_COMM_BLOCKING", "1", State::kNote,
     "NCCL calls block: if a rank is missing, the process ends without naming it", "unset it"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "0", State::kFails,
     "collectives of several communicators may deadlock", "unset it: the engine sets 1"},
    {"NCCL_P2P_DISABLE", "1", State::kNote, "GPUs reach each other through the host's memory",
     "unset it, unless the link between the GPUs is broken"},
    {"NCCL_SHM_DISABLE", "1", State::kNote,
     "GPUs that cannot reach each other's memory use the network", "unset it"},
};

// NCCL variables that change neither results nor speed.
constexpr std::string_view kHarmless[] = {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS",
                                          "NCCL_MULTI_RANK_GPU_ENABLE"};

std::string shown(const Variable& variable) {
  return fmt::format("{}={}", variable.name, quoted_name(variable.value));
}

Finding environment_note(const Variable& variable, std::string_view why, std::string_view remedy) {
  return note("environment", fmt::format("{}: {}", shown(variable), why), remedy);
}

std::optional<Finding> judge_threads(const Variable& threads, int cores) {
  const std::string_view value = threads.value;
  int count = 0;
  std::from_chars(value.data(), value.data() + value.size(), count);
  if (count >= 1 && count <= cores) return std::nullopt;
  if (count < 1) {
    return environment_note(threads, "not a number of threads: a rank computes on all cores",
                            "unset it, or give each rank its share of the cores");
  }
  return environment_note(threads, fmt::format("more threads than cores ({})", cores),
                          "unset it: fsdp-run gives each rank its share of the cores");
}

std::optional<Finding> judge_variable(const Variable& variable, const Facts& facts) {
  for (const Rule& rule : kRules) {
    if (rule.name != variable.name || rule.value != variable.value) continue;
    Finding finding = environment_note(variable, rule.consequence, rule.remedy);
    finding.state = rule.state;
    return finding;
  }
  // The effect of the variables below depends on the machine or on a version.
  const int nccl = facts.cuda.nccl.version;
  if (variable.name == "OMP_NUM_THREADS") return judge_threads(variable, facts.host.cores);
  if (variable.name == "NCCL_MULTI_RANK_GPU_ENABLE" && nccl > 0 && nccl < kNcclSharesGpus) {
    return environment_note(
        variable, fmt::format("NCCL {} does not know this variable", nccl::version_text(nccl)),
        fmt::format("give each rank its own GPU; from NCCL {} on, ranks can share a GPU",
                    nccl::version_text(kNcclSharesGpus)));
  }
  return std::nullopt;
}

// Returns true for an NCCL variable for which this file has no rule.
bool is_tuning(const Variable& variable) {
  return variable.name.starts_with("NCCL_") &&
         std::ranges::find(kHarmless, variable.name) == std::end(kHarmless) &&
         std::ranges::find(kRules, variable.name, &Rule::name) == std::end(kRules);
}

// If MASTER_ADDR does not resolve, the finding is a note and not a failure, because only ranks on
// several hosts use this address.
Finding judge_master(const MasterFacts& master) {
  const std::string name = quoted_name(master.name);
  if (!master.addresses.empty()) {
    const std::string addresses = fmt::format("{}", fmt::join(master.addresses, ", "));
    return {
        .area = "MASTER_ADDR",
        .text = addresses == master.name ? addresses : fmt::format("{} is {}", name, addresses)};
  }
  const bool answered = master.asked.how == TaskEnd::How::kDone;
  return note("MASTER_ADDR",
              fmt::format("{} does not resolve, so ranks of several hosts cannot connect: {}", name,
                          answered ? master.why_none : master.asked.failure.what),
              "set it to a name or address that resolves on every host");
}

}  // namespace

std::vector<Finding> judge_environment(const Facts& facts, DeviceKind device) {
  std::vector<Finding> findings;
  std::vector<std::string> harmless, tuning;
  for (const Variable& variable : facts.host.variables) {
    if (device == DeviceKind::kCpu && variable.name != "OMP_NUM_THREADS") continue;
    if (std::optional<Finding> finding = judge_variable(variable, facts)) {
      findings.push_back(std::move(*finding));
    } else {
      (is_tuning(variable) ? tuning : harmless).push_back(shown(variable));
    }
  }
  if (!tuning.empty()) {
    findings.push_back(note("environment",
                            fmt::format("{}: set, so NCCL does not choose these settings itself",
                                        fmt::join(tuning, ", ")),
                            "unset the variables that you did not set on purpose"));
  }
  if (!harmless.empty()) {
    findings.push_back(
        {.area = "environment", .text = fmt::format("{}", fmt::join(harmless, ", "))});
  } else if (findings.empty()) {
    findings.push_back({.area = "environment", .text = "no variable changes a run"});
  }
  if (facts.host.master && device != DeviceKind::kCpu) {
    findings.push_back(judge_master(*facts.host.master));
  }
  return findings;
}

}  // namespace fsdp::doctor

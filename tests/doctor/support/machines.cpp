#include "doctor/support/machines.h"

#include <fmt/format.h>

namespace fsdp::testing {

using doctor::Facts;
using doctor::Finding;
using doctor::State;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

Facts host_alone() {
  Facts facts;
  facts.versions = {
      .library = "0.1.0", .torch_built = "2.15", .torch_loaded = "2.15.0", .cuda_built = "13.2.86"};
  facts.host = {
      .driver_module = "580.65.06",
      .shared_folder = {.total_bytes = 32 * kGiB, .free_bytes = 31 * kGiB},
      .limits = {.open_files = 65536, .processes = 96343},
      .cores = 16,
      .all_cores = 16,
      .memory = {.total_bytes = 512 * kGiB, .free_bytes = 500 * kGiB, .copied_per_second = 12.5e9},
      .products = {.bfloat16 = true}};
  return facts;
}

}  // namespace

Facts sound_machine(int gpus) {
  Facts facts = host_alone();
  facts.cuda.versions = {.driver = 13020, .runtime = 13020};
  for (int ordinal = 0; ordinal < gpus; ++ordinal) {
    facts.cuda.gpus.push_back(
        {.ordinal = ordinal,
         .device = {.name = "NVIDIA H100 80GB HBM3", .major = 9, .memory_bytes = 79 * kGiB},
         .bus = fmt::format("0000:{:02x}:00.0", ordinal + 1),
         .free_bytes = 78 * kGiB});
    facts.cuda.reaches.emplace_back(gpus, true);
  }
  facts.cuda.nccl.version = 23007;
  facts.loopback.ranks = gpus;
  return facts;
}

Facts machine_without_gpu() {
  Facts facts = host_alone();
  facts.host.driver_module.clear();
  facts.cuda.why_none = "no NVIDIA driver (libcuda.so.1 was not found)";
  facts.cuda.hint = "install NVIDIA's driver; start a container with GPUs (--gpus all)";
  return facts;
}

std::vector<std::string> lines_of(const std::vector<Finding>& findings) {
  std::vector<std::string> lines;
  for (const Finding& finding : findings) {
    lines.push_back(fmt::format("{} {} {}", finding.area, name_of(finding.state), finding.text));
    if (!finding.remedy.empty()) lines.push_back("  remedy: " + finding.remedy);
  }
  return lines;
}

std::vector<std::string> lines_of(const Facts& facts, DeviceKind device) {
  return lines_of(judge(facts, device));
}

std::vector<std::string> objections_to(const Facts& facts, DeviceKind device) {
  std::vector<Finding> objections;
  for (const Finding& finding : judge(facts, device)) {
    if (finding.state != State::kOk) objections.push_back(finding);
  }
  return lines_of(objections);
}

int code_of(const Facts& facts, DeviceKind device) {
  return verdict_of(facts, device, judge(facts, device)).code;
}

}  // namespace fsdp::testing

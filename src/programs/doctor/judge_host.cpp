#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "fsdp/program_text.h"
#include "programs/doctor/judge.h"

namespace fsdp::doctor {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// The size of /dev/shm that containers with NCCL usually get. A smaller one is reported.
constexpr int64_t kRoomForNccl = 1024 * kMiB;
// With a lower limit of locked memory, a network card cannot register the buffers of several
// communicators.
constexpr int64_t kLockedForNetwork = 64 * kMiB;
// A rank has tens of open files and threads, or hundreds if it uses NCCL, and a host has up to
// sixteen ranks. A limit below these constants is reported as a finding.
constexpr int64_t kFewFiles = 1024;
constexpr int64_t kFewProcesses = 1024;

Finding judge_versions(const VersionFacts& versions) {
  const std::string gpu_part = versions.cuda_built.empty()
                                   ? "without the GPU's part"
                                   : fmt::format("built with CUDA {}", versions.cuda_built);
  const std::string text =
      fmt::format("fsdp {}, {}; LibTorch {}", versions.library, gpu_part, versions.torch_loaded);
  if (versions.torch_loaded.starts_with(versions.torch_built + ".")) {
    return {.area = "versions", .text = text};
  }
  return failing("versions", fmt::format("{} is loaded, built with {}", text, versions.torch_built),
                 "check LD_LIBRARY_PATH, or build with the LibTorch that is loaded");
}

// Judges the cores that a launcher divides among its ranks. A container's quota limits processor
// time and not the affinity mask, so the launcher does not see it.
Finding judge_cores(const HostFacts& host) {
  const std::optional<double>& quota = host.container.cores;
  std::string text = fmt::format("{}", host.cores);
  if (host.cores < host.all_cores) text += fmt::format(" of {}", host.all_cores);
  if (!quota || *quota >= host.cores) return {.area = "cores", .text = std::move(text)};
  return note("cores", fmt::format("{}, of which the container may use {:.3g}", text, *quota),
              "set OMP_NUM_THREADS so that all ranks together have at most so many threads");
}

Finding judge_memory(const HostFacts& host) {
  const MemoryFacts& memory = host.memory;
  std::string text =
      fmt::format("{}, {} free", format_bytes(memory.total_bytes), format_bytes(memory.free_bytes));
  if (host.container.memory_bytes) {
    text += fmt::format("; the container may use {}, {} free",
                        format_bytes(*host.container.memory_bytes),
                        format_bytes(host.container.free_bytes.value_or(0)));
  }
  text += fmt::format("; one core copies {:.1f} GB/s", memory.copied_per_second / 1e9);
  return {.area = "memory", .text = std::move(text)};
}

// Reports the dtypes that the processor multiplies directly, and those that it converts to float32
// first. Used for ranks that compute on the CPU.
Finding judge_dtypes(const FastProducts& products) {
  std::vector<std::string_view> fast{"float32"}, slow;
  (products.bfloat16 ? fast : slow).push_back("bfloat16");
  (products.float16 ? fast : slow).push_back("float16");
  std::string text = fmt::format("the processor multiplies {}", fmt::join(fast, ", "));
  if (!slow.empty()) text += fmt::format("; {} by way of float32", fmt::join(slow, ", "));
  return {.area = "dtypes", .text = std::move(text)};
}

Finding judge_job_memory(const std::optional<ErrorText>& refusal) {
  if (!refusal) {
    return {.area = "processes", .text = "ranks that are processes can share their memory"};
  }
  ErrorText text = *refusal;
  const std::string remedy = std::exchange(text.hint, {});
  return failing("processes", Error(ExitCode::kInternal, text).what(),
                 remedy.empty() ? "run ranks as threads of one process (Mesh::local)" : remedy);
}

Finding judge_shared_folder(const SharedFolderFacts& folder, bool by_nccl) {
  const bool is_there = folder.why_none.empty();
  const std::string text = is_there ? fmt::format("{} free of {}", format_bytes(folder.free_bytes),
                                                  format_bytes(folder.total_bytes))
                                    : fmt::format("cannot be used: {}", folder.why_none);
  if (!by_nccl || (is_there && folder.free_bytes >= kRoomForNccl)) {
    return {.area = "/dev/shm", .text = text};
  }
  return note("/dev/shm",
              fmt::format("{}; NCCL may need up to {}", text, format_bytes(kRoomForNccl)),
              "give a container more (--shm-size=1g), or mount a larger tmpfs there");
}

bool is_below(const std::optional<int64_t>& limit, int64_t wanted) {
  return limit && *limit < wanted;
}

std::string shown_bytes(const std::optional<int64_t>& limit) {
  return limit ? format_bytes(*limit) : "unlimited";
}

std::string shown_count(const std::optional<int64_t>& limit) {
  return limit ? fmt::format("{}", *limit) : "unlimited";
}

// Returns a finding for each limit that is too low, and one finding for all other limits.
std::vector<Finding> judge_limits(const LimitFacts& limits, bool has_gpu) {
  std::vector<Finding> findings;
  std::vector<std::string> good;
  const auto look = [&](std::string shown, bool is_low, std::string_view why,
                        std::string_view remedy) {
    if (!is_low) return good.push_back(std::move(shown));
    findings.push_back(note("limits", fmt::format("ulimit {}: {}", shown, why), remedy));
  };
  look("-l " + shown_bytes(limits.locked_bytes),
       has_gpu && is_below(limits.locked_bytes, kLockedForNetwork),
       "InfiniBand between hosts needs locked memory; one host needs none",
       "ulimit -l unlimited; memlock in limits.conf; --ulimit memlock=-1 for a container");
  look("-n " + shown_count(limits.open_files), is_below(limits.open_files, kFewFiles),
       "many ranks open more files", "ulimit -n 65536");
  look("-u " + shown_count(limits.processes), is_below(limits.processes, kFewProcesses),
       "threads count, and each rank has dozens", "ulimit -u unlimited");
  look("-v " + shown_bytes(limits.address_bytes), has_gpu && limits.address_bytes,
       "CUDA reserves addresses for the memory of all GPUs and of the host", "ulimit -v unlimited");
  if (!good.empty()) {
    findings.push_back({.area = "limits", .text = fmt::format("ulimit {}", fmt::join(good, ", "))});
  }
  return findings;
}

}  // namespace

std::vector<Finding> judge_host(const Facts& facts, DeviceKind device) {
  const bool has_gpu = device != DeviceKind::kCpu && !facts.cuda.gpus.empty();
  std::vector<Finding> findings{judge_versions(facts.versions), judge_cores(facts.host),
                                judge_memory(facts.host)};
  if (device != DeviceKind::kCuda && (device == DeviceKind::kCpu || why_no_gpu(facts.cuda))) {
    findings.push_back(judge_dtypes(facts.host.products));
  }
  findings.push_back(judge_job_memory(facts.host.job_memory_refusal));
  if (device != DeviceKind::kCpu) {
    findings.push_back(judge_shared_folder(facts.host.shared_folder, facts.cuda.gpus.size() > 1));
  }
  for (Finding& finding : judge_limits(facts.host.limits, has_gpu)) {
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace fsdp::doctor

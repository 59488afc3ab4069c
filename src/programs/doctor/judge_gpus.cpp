#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "comm/nccl/nccl_library.h"
#include "fsdp/program_text.h"
#include "programs/doctor/judge.h"

namespace fsdp::doctor {
namespace {

// If other processes use more than this fraction (1/5) of a GPU's memory, the GPU counts as shared.
constexpr int64_t kNoticedPart = 5;
constexpr std::string_view kLostGpuRemedy =
    "look for a broken GPU or driver in nvidia-smi and dmesg (Xid); reset the GPU or reboot if it "
    "hangs";

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string without_hint(ErrorText text) {
  text.hint.clear();
  return Error(ExitCode::kInternal, std::move(text)).what();
}

std::string remedy_of(const ErrorText& text, std::string_view otherwise) {
  return text.hint.empty() ? std::string(otherwise) : text.hint;
}

// Returns true if `why` says that there is no driver. This is recognised by the text that open_cuda
// uses.
bool lacks_driver(const ErrorText& why) { return why.what.starts_with("no NVIDIA driver"); }

Finding judge_driver(const Facts& facts, State without) {
  const CudaVersions& versions = facts.cuda.versions;
  const std::string& module = facts.host.driver_module;
  if (versions.driver == 0 && module.empty()) {
    return {"driver", without,
            "the kernel module of NVIDIA's driver is not loaded (no /proc/driver/nvidia/version)",
            "install NVIDIA's driver on the host; check it with nvidia-smi"};
  }
  std::string text = module.empty() ? "of unknown version" : module;
  if (versions.driver == 0) return {.area = "driver", .text = text + ", as a module of the kernel"};
  text += fmt::format(", for CUDA {}; the CUDA runtime is {}", cuda_text(versions.driver),
                      cuda_text(versions.runtime));
  if (versions.driver >= versions.runtime) return {.area = "driver", .text = std::move(text)};
  return note("driver", text + ": kernels that are compiled for the GPU run, PTX does not",
              "install a newer driver if no kernel is compiled for your GPU");
}

Finding judge_absence(const Facts& facts) {
  const bool hangs = facts.cuda.asked.how != TaskEnd::How::kDone;
  const ErrorText why = explain_no_gpu(facts);
  return {"GPUs", hangs ? State::kFails : State::kNote, without_hint(why), why.hint};
}

std::string_view shown_mode(CudaDeviceFacts::Mode mode) {
  switch (mode) {
    case CudaDeviceFacts::Mode::kShared:
      return "";
    case CudaDeviceFacts::Mode::kOneProcess:
      return ", for one process at a time";
    case CudaDeviceFacts::Mode::kProhibited:
      return ", compute prohibited";
  }
  return {};
}

std::string describe(const GpuFacts& gpu) {
  const CudaDeviceFacts& device = gpu.device;
  const std::string room =
      gpu.refusal ? "" : fmt::format("{} free of ", format_bytes(gpu.free_bytes));
  return fmt::format("{} ({}.{}), {}{}, {}{}", device.name, device.major, device.minor, room,
                     format_bytes(device.memory_bytes), gpu.bus, shown_mode(device.mode));
}

Finding judge_gpu(const GpuFacts& gpu, State refused) {
  const std::string area = fmt::format("cuda:{}", gpu.ordinal);
  if (gpu.refusal) {
    const std::string known = gpu.device.name.empty() ? "" : describe(gpu) + ": ";
    return {area, refused, known + without_hint(*gpu.refusal),
            gpu.device.mode == CudaDeviceFacts::Mode::kProhibited
                ? fmt::format("nvidia-smi -i {} -c DEFAULT", gpu.bus)
                : remedy_of(*gpu.refusal, kLostGpuRemedy)};
  }
  const int64_t used = gpu.device.memory_bytes - gpu.free_bytes;
  if (used <= gpu.device.memory_bytes / kNoticedPart) return {.area = area, .text = describe(gpu)};
  return note(area, describe(gpu) + ": other processes use it",
              "see nvidia-smi for them; limit a rank with --memory-limit");
}

Finding judge_kernels(const std::vector<Variable>& variables) {
  const auto set = std::ranges::find(variables, "CUDA_MODULE_LOADING", &Variable::name);
  if (set == variables.end() || set->value != "EAGER") {
    return {
        .area = "kernels",
        .text = "the engine's kernels are loaded when it opens a GPU, others when they first run"};
  }
  return note("kernels",
              "CUDA_MODULE_LOADING=EAGER loads all kernels of LibTorch and NCCL at the start, "
              "which takes time and memory",
              "unset it: the engine loads its own kernels when it opens a GPU");
}

// Returns the peer access of GPU `from` as text, such as "0 reaches 1, not 2". Returns an empty
// string if `from` can access the memory of all other GPUs.
std::string row_of(const std::vector<bool>& reaches, int from) {
  std::vector<int> yes, no;
  for (int to = 0; to < std::ssize(reaches); ++to) {
    if (to != from) (reaches[static_cast<size_t>(to)] ? yes : no).push_back(to);
  }
  if (no.empty()) return {};
  if (yes.empty()) return fmt::format("{} reaches none", from);
  return fmt::format("{} reaches {}, not {}", from, fmt::join(yes, " "), fmt::join(no, " "));
}

Finding judge_peers(const std::vector<std::vector<bool>>& reaches) {
  std::vector<std::string> rows;
  for (int from = 0; from < std::ssize(reaches); ++from) {
    std::string row = row_of(reaches[static_cast<size_t>(from)], from);
    if (!row.empty()) rows.push_back(std::move(row));
  }
  if (rows.empty()) {
    return {.area = "peers",
            .text = fmt::format("each of {} GPUs reaches the others' memory", reaches.size())};
  }
  return note("peers",
              fmt::format("{}: between those NCCL uses the host's memory", fmt::join(rows, "; ")),
              "check the IOMMU and PCI access control (ACS) in the host's firmware, unless the "
              "board has no such link (nvidia-smi topo -m)");
}

Finding judge_nccl(const NcclFacts& nccl, size_t gpus) {
  if (nccl.refusal) {
    const bool is_needed = gpus > 1;
    return {"NCCL", is_needed ? State::kFails : State::kNote,
            without_hint(*nccl.refusal) +
                (is_needed ? "" : "; on one GPU ranks are threads and need no NCCL"),
            remedy_of(*nccl.refusal, "run tools/setup --gpu, which installs a matching NCCL")};
  }
  std::string text = fmt::format("{}, 2.26 or newer is needed", nccl::version_text(nccl.version));
  const auto tell = [&](int since, std::string_view what) {
    text += nccl.version >= since
                ? fmt::format("; it supports {}", what)
                : fmt::format("; {} or newer supports {}", nccl::version_text(since), what);
  };
  tell(kNcclSharesGpus, "several ranks on one GPU");
  tell(nccl::kWindowsFrom, "registered windows (Options::tuning.nccl_registration)");
  return {.area = "NCCL", .text = std::move(text)};
}

Finding judge_loopback(const Facts& facts) {
  const LoopbackFacts& loopback = facts.loopback;
  if (loopback.ranks == 0) {
    return note("loopback", "not run: " + why_no_loopback(facts.cuda), "fix this problem first");
  }
  const std::string tried = loopback.ranks == 1
                                ? "cuda:0, a kernel and copies (one GPU makes no communicator)"
                                : fmt::format("{} ranks, a GPU each, by NCCL", loopback.ranks);
  if (loopback.end.how == TaskEnd::How::kDone) {
    return {.area = "loopback", .text = tried + ": values are right"};
  }
  // If the loopback hung, the hint of its error is meant for developers, so the user gets another
  // remedy.
  const bool is_stuck = loopback.end.how == TaskEnd::How::kStuck;
  return failing("loopback", fmt::format("{}: {}", tried, without_hint(loopback.end.failure)),
                 is_stuck ? kLostGpuRemedy : remedy_of(loopback.end.failure, kLostGpuRemedy));
}

}  // namespace

std::optional<ErrorText> why_no_gpu(const CudaFacts& cuda) {
  if (cuda.asked.how != TaskEnd::How::kDone) return cuda.asked.failure;
  if (cuda.gpus.empty()) return ErrorText{.what = cuda.why_none, .hint = cuda.hint};
  // One usable GPU is enough. If no GPU is usable, returns the reason why the first one is not.
  for (const GpuFacts& gpu : cuda.gpus) {
    if (!gpu.refusal) return std::nullopt;
  }
  return cuda.gpus.front().refusal;
}

// If the driver's kernel module is loaded but its library is not found, the container was started
// without GPUs. If neither is found, no driver is installed.
ErrorText explain_no_gpu(const Facts& facts) {
  ErrorText why = why_no_gpu(facts.cuda).value_or(ErrorText{});
  if (lacks_driver(why)) {
    const bool has_module = !facts.host.driver_module.empty();
    if (!has_module) why.what += ", and its kernel module is not loaded";
    why.hint = has_module ? "start the container with GPUs (--gpus all, NVIDIA's container "
                            "toolkit): the host's driver runs, but its libraries are missing here"
                          : "install NVIDIA's driver on the host; check it with nvidia-smi";
  }
  const bool hangs = facts.cuda.asked.how != TaskEnd::How::kDone;
  why.hint = remedy_of(why, hangs ? kLostGpuRemedy : "run nvidia-smi for details");
  return why;
}

std::string why_no_loopback(const CudaFacts& cuda) {
  if (why_no_gpu(cuda)) return "no GPU can be used";
  for (const GpuFacts& gpu : cuda.gpus) {
    if (gpu.refusal) return fmt::format("cuda:{} cannot be used", gpu.ordinal);
  }
  if (cuda.gpus.size() > 1 && cuda.nccl.refusal) return "no usable NCCL was found";
  return {};
}

std::vector<Finding> judge_gpus(const Facts& facts, DeviceKind device) {
  const State without = device == DeviceKind::kCuda ? State::kFails : State::kNote;
  const CudaFacts& cuda = facts.cuda;
  const std::optional<ErrorText> why = why_no_gpu(cuda);
  std::vector<Finding> findings;
  // A missing driver is reported by the error of the program or by judge_absence, so judge_driver
  // is not called.
  const bool is_missing = why && lacks_driver(*why) && facts.host.driver_module.empty();
  if (!is_missing) findings.push_back(judge_driver(facts, without));
  if (cuda.gpus.empty()) {
    if (device != DeviceKind::kCuda) findings.push_back(judge_absence(facts));
    return findings;
  }
  const bool has_none = why.has_value();
  for (const GpuFacts& gpu : cuda.gpus) {
    findings.push_back(judge_gpu(gpu, has_none ? without : State::kFails));
  }
  if (has_none) return findings;
  findings.push_back(judge_kernels(facts.host.variables));
  if (cuda.gpus.size() > 1) findings.push_back(judge_peers(cuda.reaches));
  findings.push_back(judge_nccl(cuda.nccl, cuda.gpus.size()));
  findings.push_back(judge_loopback(facts));
  return findings;
}

}  // namespace fsdp::doctor

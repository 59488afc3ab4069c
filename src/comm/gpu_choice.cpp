#include "comm/gpu_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/job/control_plane.h"
#include "comm/mesh_parts.h"
#include "comm/nccl/nccl_library.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/open_cuda.h"

namespace fsdp {
namespace {

// Ranks may share one where NCCL was told so.
bool may_share() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text != nullptr && std::string_view(text) == "1";
}

// Says why ranks do not compute on GPUs, the way options.device wants it said.
void say_why(const MeshOptions& options, int rank, std::string cause, const std::string& hint) {
  const auto with = [&](std::string_view ours) {
    return hint.empty() ? std::string(ours) : fmt::format("{}; {}", hint, ours);
  };
  if (options.device == DeviceKind::kCuda) {
    throw InvalidArgument({.what = "ranks cannot compute on a GPU",
                           .where = "device cuda",
                           .cause = std::move(cause),
                           .hint = with("use device auto to fall back to the CPU")});
  }
  if (rank != 0) return;
  if (const auto warn = warning_listener(options)) {
    warn({.what = "computing on the CPU",
          .where = "device auto",
          .cause = std::move(cause),
          .hint = with("use device cpu to avoid this warning")});
  }
}

// Of the host, containers included, from one start of it to the next; where it does not tell, its
// name.
std::string boot_of_host() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  return std::getline(file, boot) && !boot.empty() ? boot : host_name();
}

GpuChoice open_gpu(int ordinal, bool by_nccl) {
  GpuChoice choice;
  try {
    choice.device = &cuda_device(ordinal);
    const std::string bus = cuda_library()->device_bus(ordinal);
    choice.uuid = cuda_library()->device_facts(ordinal).uuid;
    choice.board = fmt::format("{} {}", boot_of_host(), bus);
    choice.place = fmt::format("{} {}", host_name(), bus);
    if (by_nccl) nccl::library();
  } catch (const DeviceError& error) {  // too old, or lost; no NCCL
    choice = {.why_none = error.text().what, .hint = error.text().hint};
  }
  return choice;
}

}  // namespace

GpuChoice gpu_of_process(int local_rank) {
  const CudaDevices& devices = cuda_devices();
  if (devices.count == 0) return {.why_none = devices.why_none, .hint = devices.hint};
  const int ordinal = devices.count == 1 ? 0 : local_rank;
  if (ordinal >= devices.count) {
    return {.why_none = fmt::format("LOCAL_RANK={}, but the process sees {} GPUs", local_rank,
                                    devices.count),
            .hint = "start at most one rank a GPU (CUDA_VISIBLE_DEVICES may hide some)"};
  }
  return open_gpu(ordinal, /*by_nccl=*/true);
}

GpuChoice gpu_of_threads() {
  const CudaDevices& devices = cuda_devices();
  if (devices.count == 0) return {.why_none = devices.why_none, .hint = devices.hint};
  return open_gpu(0, /*by_nccl=*/false);
}

bool compute_on_gpus(const MeshOptions& options, const GpuChoice& own, ControlPlane& plane) {
  if (options.device == DeviceKind::kCpu) return false;
  // A mark, and lines: what says which GPU it is, or why there is none and the hint.
  const std::string text = own.device != nullptr
                               ? fmt::format("+{}\n{}\n{}", own.uuid, own.board, own.place)
                               : fmt::format("-{}\n{}", own.why_none, own.hint);
  const std::vector<std::string> texts = plane.exchange({.label = "GPUs of the ranks"}, text);
  std::map<std::string_view, int> first_of;  // rank with a UUID, or with a board
  for (int rank = 0; rank < plane.world_size(); ++rank) {
    const std::string_view said = texts[static_cast<size_t>(rank)];
    const size_t end = said.find('\n');
    if (said.front() == '-') {
      say_why(options, plane.rank(), fmt::format("rank {}: {}", rank, said.substr(1, end - 1)),
              std::string(said.substr(end + 1)));
      return false;
    }
    const size_t end_of_board = said.find('\n', end + 1);
    const std::string_view uuid = said.substr(1, end - 1);
    const int same_gpu = uuid.empty() ? rank : first_of.emplace(uuid, rank).first->second;
    const int same_board =
        first_of.emplace(said.substr(end + 1, end_of_board - end - 1), rank).first->second;
    const int other = std::min(same_gpu, same_board);
    if (other == rank || may_share()) continue;
    say_why(
        options, plane.rank(),
        fmt::format("ranks {} and {} share a GPU ({})", other, rank, said.substr(end_of_board + 1)),
        "start at most one rank a GPU");
    return false;
  }
  return true;
}

bool compute_on_gpu(const MeshOptions& options, const GpuChoice& shared) {
  if (shared.device == nullptr) say_why(options, /*rank=*/0, shared.why_none, shared.hint);
  return shared.device != nullptr;
}

}  // namespace fsdp

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

// Returns true if NCCL allows several ranks on one GPU in this environment.
bool may_share() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text != nullptr && std::string_view(text) == "1";
}

// Reports why ranks do not compute on GPUs. Throws an exception if options.device is kCuda. With
// kAuto it warns on rank 0.
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
  if (!options.on_event) return;
  options.on_event({.text = {.what = "the ranks compute on the CPU",
                             .where = "device auto",
                             .cause = std::move(cause),
                             .hint = with("use device cpu to avoid this warning")}});
}

// Returns the boot id of the host, or the host's name if there is no boot id. All containers of a
// host share the boot id. Each boot changes it.
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
    // library() throws if there is no NCCL. It is called here, so that this rank reports the reason
    // before the ranks choose GPUs.
    if (by_nccl) nccl::library();
  } catch (const DeviceError& error) {  // driver too old, GPU lost, or no NCCL
    choice = {.why_none = error.text().what, .hint = error.text().hint};
  }
  return choice;
}

}  // namespace

GpuChoice gpu_of_process(int local_rank) {
  const CudaDevices& devices = cuda_devices();
  if (devices.count == 0) return {.why_none = devices.why_none, .hint = devices.hint};
  // If a process sees only one GPU, its launcher has assigned this GPU to it
  // (CUDA_VISIBLE_DEVICES).
  const int ordinal = devices.count == 1 ? 0 : local_rank;
  if (ordinal >= devices.count) {
    return {
        .why_none = fmt::format("LOCAL_RANK={}, expected less than the number of visible GPUs, {}",
                                local_rank, devices.count),
        .hint = "start at most one rank per GPU; CUDA_VISIBLE_DEVICES may hide GPUs"};
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
  // The ranks exchange their choices as texts. If a rank has a GPU, its text is '+' and lines with
  // UUID, board and place. If it has none, its text is '-' and lines with reason and hint. All
  // ranks read all texts in the same order, so they make the same decision or throw the same error.
  const std::string text = own.device != nullptr
                               ? fmt::format("+{}\n{}\n{}", own.uuid, own.board, own.place)
                               : fmt::format("-{}\n{}", own.why_none, own.hint);
  const std::vector<std::string> texts = plane.exchange({.label = "GPUs of the ranks"}, text);
  std::map<std::string_view, int> first_of;  // lowest rank with this UUID or board
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
    // An unknown UUID equals no other UUID. In this case only the boards are compared.
    const int same_gpu = uuid.empty() ? rank : first_of.emplace(uuid, rank).first->second;
    const int same_board =
        first_of.emplace(said.substr(end + 1, end_of_board - end - 1), rank).first->second;
    const int other = std::min(same_gpu, same_board);
    if (other == rank || may_share()) continue;
    say_why(
        options, plane.rank(),
        fmt::format("ranks {} and {} share a GPU ({})", other, rank, said.substr(end_of_board + 1)),
        "start at most one rank per GPU");
    return false;
  }
  return true;
}

bool compute_on_gpu(const MeshOptions& options, const GpuChoice& shared) {
  if (shared.device == nullptr) say_why(options, /*rank=*/0, shared.why_none, shared.hint);
  return shared.device != nullptr;
}

}  // namespace fsdp

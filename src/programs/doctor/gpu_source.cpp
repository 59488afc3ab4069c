#include "programs/doctor/gpu_source.h"

#include <chrono>
#include <thread>

#include "fsdp/mesh.h"
#include "programs/doctor/loopback.h"
#include "programs/doctor/loopback_processes.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/device.h"

namespace fsdp::doctor {
namespace {

// If a collective hangs, the mesh calls on_event, and ends the process once on_event has returned.
// For this time on_event blocks, so that the program can first print the failure as a finding.
constexpr auto kTimeToReport = std::chrono::seconds(60);

GpuFacts gather_gpu(const CudaLibrary& library, int ordinal) {
  GpuFacts gpu{.ordinal = ordinal};
  try {
    gpu.device = library.device_facts(ordinal);
    gpu.bus = library.device_bus(ordinal);
    library.open_device(ordinal);  // loads all kernels, as a run does
    gpu.free_bytes = library.device_free_bytes(ordinal);
    // This process leaves the device, because in exclusive-process mode a rank of the loopback
    // could not open it otherwise.
    library.leave_device(ordinal);
  } catch (const DeviceError& error) {
    gpu.refusal = error.text();
  }
  return gpu;
}

NcclFacts gather_nccl(const GpuSource& source) {
  NcclFacts facts;
  try {
    source.nccl().get_version(&facts.version);
  } catch (const DeviceError& error) {
    facts.refusal = error.text();
  }
  return facts;
}

std::vector<std::vector<bool>> gather_peers(const CudaLibrary& library, int count) {
  std::vector<std::vector<bool>> reaches;
  for (int from = 0; from < count; ++from) {
    std::vector<bool>& row = reaches.emplace_back();
    for (int to = 0; to < count; ++to) row.push_back(to == from || library.reaches(from, to));
  }
  return reaches;
}

// Runs the loopback (doctor/loopback.h) on the GPUs of this machine. A single rank is a thread.
// Several ranks are processes, as in a run, because threads with one GPU each could block each
// other in calls that allocate.
void loop_back_on_machine(int ranks, const TellStuck& tell_stuck) {
  if (ranks > 1) return run_loopback_processes(ranks);
  run_loopback(Mesh::local(
      1, {.device = DeviceKind::kCuda, .on_event = [tell_stuck](const MeshEvent& event) {
            if (event.kind != MeshEvent::Kind::kStuck) return;
            // After the first call of tell_stuck, run_within returns in the main thread. The
            // program then prints its findings and ends the process while this thread sleeps.
            tell_stuck(CommError(event.text, event.code));
            std::this_thread::sleep_for(kTimeToReport);
          }}));
}

}  // namespace

GpuSource gpus_of_machine() {
  return {.devices = [] { return cuda_devices(); },
          .library = []() -> const CudaLibrary& { return *cuda_library(); },
          .nccl = []() -> const nccl::Library& { return nccl::library(); },
          .loop_back = loop_back_on_machine};
}

CudaFacts gather_cuda(const GpuSource& source) {
  const CudaDevices devices = source.devices();
  CudaFacts facts{.why_none = devices.why_none, .hint = devices.hint};
  if (devices.count == 0) return facts;
  const CudaLibrary& library = source.library();
  facts.versions = library.versions();
  for (int ordinal = 0; ordinal < devices.count; ++ordinal) {
    facts.gpus.push_back(gather_gpu(library, ordinal));
  }
  facts.reaches = gather_peers(library, devices.count);
  facts.nccl = gather_nccl(source);
  return facts;
}

}  // namespace fsdp::doctor

#include "runtime/cpu/cpu_stream.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice() : compute_(make_cpu_stream(*this, {.name = "compute", .runs_beside = false})) {}

  std::string_view name() const override { return "cpu"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions& options) const override {
    return make_cpu_stream(*this, options);
  }
  Stream& compute_stream(void* /*native*/) const override { return *compute_; }
  // The kind of memory is ignored, because every kernel and copy of the host can access all host
  // memory.
  Buffer allocate(int64_t bytes, MemoryKind /*kind*/) const override {
    return allocate_host(bytes);
  }
  const kernels::KernelTable* kernels() const override { return nullptr; }

 private:
  const std::unique_ptr<Stream> compute_;  // inline, so no work is ever pending in it
};

}  // namespace

const Device& cpu_device() {
  // The device is never destroyed, because static objects of the program may use it after this
  // library's static objects are destroyed.
  static const CpuDevice& device = *new CpuDevice;
  return device;
}

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kDevice:
      return "device";
  }
  return "unknown";
}

}  // namespace fsdp

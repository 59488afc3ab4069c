// A library that looks like libfsdp_cuda.so on a machine with two GPUs.
#include <memory>
#include <string>

#include "fsdp/error.h"
#include "fsdp_cuda_build.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/device.h"

#ifndef FAKE_BUILD
#define FAKE_BUILD kFsdpCudaBuild
#endif

namespace fsdp {
namespace {

class FakeGpu final : public Device {
 public:
  explicit FakeGpu(int ordinal) : name_("cuda:" + std::to_string(ordinal)) {}
  std::string_view name() const override { return name_; }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) const override { refuse(); }
  Stream& compute_stream(void*) const override { refuse(); }
  Buffer allocate(int64_t, MemoryKind) const override { refuse(); }
  const kernels::KernelTable* kernels() const override { return nullptr; }

 private:
  [[noreturn]] static void refuse() { throw StateError({.what = "a fake GPU does nothing"}); }
  std::string name_;
};

constexpr CudaLibrary kLibrary{
    .build = FAKE_BUILD,
    .device_count =
        [](std::string& why_none) {
          why_none.clear();
          return 2;
        },
    .open_device = [](int ordinal) -> std::unique_ptr<Device> {
      if (ordinal < 2) return std::make_unique<FakeGpu>(ordinal);
      throw DeviceError({.what = "there is no cuda:" + std::to_string(ordinal)});
    },
    .device_bus = [](int ordinal) { return "0000:0" + std::to_string(ordinal) + ":00.0"; },
    .versions = [] { return CudaVersions{.driver = 13010, .runtime = 13020}; }};

}  // namespace

const CudaLibrary* fsdp_cuda_library() { return &kLibrary; }

}  // namespace fsdp

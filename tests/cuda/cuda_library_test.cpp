// Tests the shipped libfsdp_cuda.so with the real CUDA runtime. If there is a GPU, the library
// opens it. Otherwise it reports that there is none.
#include "runtime/cuda/cuda_library.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "fsdp/error.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

void* opened() {
  void* library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  return library;
}

const CudaLibrary& cuda_library() {
  auto* get = reinterpret_cast<decltype(&fsdp_cuda_library)>(dlsym(opened(), "fsdp_cuda_library"));
  REQUIRE((get != nullptr));
  return *get();
}

std::string text_of_opening(int ordinal) {
  try {
    cuda_library().open_device(ordinal);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "opened";
}

TEST_CASE("the library loads with what it names, and is of this build") {
  CHECK(std::string(cuda_library().build).starts_with(FSDP_VERSION));
}

TEST_CASE("devices are counted, or the reason is given why there are none") {
  std::string why_none = "kept from before";
  const int count = cuda_library().device_count(why_none);
  CHECK((count == 0) != why_none.empty());
  if (count > 0) return;
  const std::string no_driver =
      "no NVIDIA driver runs on this machine (cudaErrorInsufficientDriver)";
  const std::string hidden =
      "the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES may hide it)";
  CHECK_MESSAGE((why_none == no_driver || why_none == hidden), why_none);
  CHECK(text_of_opening(0) == "there is no cuda:0; " + why_none +
                                  "; hint: start at most one rank per GPU, or use the CPU");
}

TEST_CASE("a device that is not there is refused by an error of ours") {
  std::string why_none;
  const int count = cuda_library().device_count(why_none);
  CHECK(text_of_opening(count).starts_with("there is no cuda:" + std::to_string(count) + ";"));
  CHECK(text_of_opening(-1).starts_with("there is no cuda:-1;"));
}

TEST_CASE("a GPU is opened with its kernels loaded, and gives zeroed memory") {
  std::string why_none;
  if (cuda_library().device_count(why_none) == 0) {
    MESSAGE("not run: ", why_none);
    return;
  }
  const std::unique_ptr<Device> device = cuda_library().open_device(0);
  CHECK(device->name() == "cuda:0");
  CHECK(device->kernels() != nullptr);
  const Buffer memory = device->allocate(4096, MemoryKind::kDevice);
  std::string host(4096, 'x');
  device->make_stream({.name = "test"})->read(host.data(), memory.data(), 4096);
  CHECK(host == std::string(4096, '\0'));
}

}  // namespace
}  // namespace fsdp

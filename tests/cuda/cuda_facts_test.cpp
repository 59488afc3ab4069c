// Tests the facts about CUDA and GPUs that the shipped libfsdp_cuda.so reports, on machines with
// and without a GPU.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "fsdp/error.h"
#include "runtime/cuda/cuda_library.h"
#include "runtime/device.h"

namespace fsdp {
namespace {

const CudaLibrary& shipped_library() {
  void* const file = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(file != nullptr, dlerror());
  auto* const get =
      reinterpret_cast<decltype(&fsdp_cuda_library)>(dlsym(file, "fsdp_cuda_library"));
  REQUIRE((get != nullptr));
  return *get();
}

TEST_CASE("versions are told with and without a driver") {
  std::string why_none;
  const int count = shipped_library().device_count(why_none);
  const CudaVersions versions = shipped_library().versions();
  CHECK(versions.runtime >= 12000);
  CHECK((count == 0 || versions.driver >= 12000));
}

TEST_CASE("each GPU tells what it is, and one that is not there is an error of ours") {
  const CudaLibrary& library = shipped_library();
  std::string why_none;
  const int count = library.device_count(why_none);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const CudaDeviceFacts facts = library.device_facts(ordinal);
    CHECK(!facts.name.empty());
    CHECK(facts.major > 0);
    CHECK(facts.memory_bytes > 0);
    if (facts.mode == CudaDeviceFacts::Mode::kShared) {
      CHECK(library.device_free_bytes(ordinal) <= facts.memory_bytes);
    }
  }
  CHECK_THROWS_AS(library.device_facts(count), DeviceError);
  CHECK_THROWS_AS(library.device_free_bytes(count), DeviceError);
  CHECK_THROWS_AS(library.reaches(count, count + 1), DeviceError);
}

}  // namespace
}  // namespace fsdp

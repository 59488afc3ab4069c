// Tests the choice of the NCCL library, and the settings that are made before its first call.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <fsdp/error.h>

#include <cstdlib>
#include <string>

#include "comm/nccl/nccl_library.h"

using namespace fsdp;

namespace {

std::string refusal() {
  try {
    nccl::find_library();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

// A library with the names of NCCL's functions. The functions do nothing.
struct Stub {
  Stub(const char* path, int flags) : file(dlopen(path, RTLD_NOW | flags)) {
    REQUIRE(file != nullptr);
    set_version = reinterpret_cast<void (*)(int)>(dlsym(file, "stub_nccl_set_version"));
    order = reinterpret_cast<const char* (*)()>(dlsym(file, "stub_nccl_order"));
  }
  void* file;
  void (*set_version)(int version);
  const char* (*order)();
};

constexpr char kFile[] = "FSDP_NCCL";

}  // namespace

TEST_CASE("NCCL is what is loaded, new enough, and launches in the host's order") {
  constexpr char kOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
  CHECK(refusal().starts_with("libnccl.so.2 is not loaded"));

  setenv(kFile, "/no/such/file", 1);
  CHECK(refusal().starts_with("/no/such/file cannot be loaded"));
  // FSDP_NCCL names the file. This is needed if a LibTorch contains NCCL with hidden names.
  const Stub inside(STUB_NCCL_INSIDE, RTLD_LOCAL);
  inside.set_version(22602);
  setenv(kFile, STUB_NCCL_INSIDE, 1);
  CHECK(refusal().empty());
  unsetenv(kFile);
  CHECK(refusal().starts_with("libnccl.so.2 is not loaded"));

  // Now a loaded library contains NCCL with global names.
  const Stub shown(STUB_NCCL_INSIDE, RTLD_GLOBAL);
  CHECK(refusal().empty());
  inside.set_version(22503);
  CHECK(refusal().starts_with("NCCL 2.25.3 is too old"));

  const Stub loaded(STUB_NCCL, RTLD_GLOBAL);
  loaded.set_version(22503);
  setenv(kOrder, "0", 1);  // a user's setting is kept
  CHECK(refusal() == "NCCL 2.25.3 is too old (NCCL); hint: use NCCL 2.26.0 or newer");
  REQUIRE(loaded.order() != nullptr);
  CHECK(std::string(loaded.order()) == "0");

  loaded.set_version(22602);
  setenv(kFile, STUB_NCCL, 1);
  CHECK(refusal().find("but the process already uses the NCCL of libnccl.so.2") !=
        std::string::npos);
  unsetenv(kFile);
  unsetenv(kOrder);
  CHECK(refusal().empty());
  REQUIRE(loaded.order() != nullptr);
  CHECK(std::string(loaded.order()) == "1");
  CHECK(&nccl::library() == &nccl::library());
}

// Which NCCL is taken, and what it is told before its first call.
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
    nccl::library();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("NCCL is what is loaded, new enough, and launches in the host's order") {
  constexpr char kOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";
  CHECK(refusal().starts_with("libnccl.so.2 is not loaded"));
  void* const file = dlopen(STUB_NCCL, RTLD_NOW | RTLD_GLOBAL);
  REQUIRE(file != nullptr);
  auto* const set_version = reinterpret_cast<void (*)(int)>(dlsym(file, "stub_nccl_set_version"));
  auto* const order = reinterpret_cast<const char* (*)()>(dlsym(file, "stub_nccl_order"));

  set_version(22503);
  setenv(kOrder, "0", 1);  // what a user has said stays
  CHECK(refusal() == "NCCL 2.25.3 is too old (NCCL); hint: 2.26.0 is the oldest that is used");
  REQUIRE(order() != nullptr);
  CHECK(std::string(order()) == "0");

  set_version(22602);
  unsetenv(kOrder);
  CHECK(refusal().empty());
  REQUIRE(order() != nullptr);
  CHECK(std::string(order()) == "1");
  CHECK(&nccl::library() == &nccl::library());
}

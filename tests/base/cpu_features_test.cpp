#include "base/cpu_features.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

using namespace fsdp;

TEST_CASE("oneDNN is told to leave AMX alone once, and never against what the user has set") {
  const char* before = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string kept = before == nullptr ? "" : before;
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  CHECK_FALSE(needs_amx_left_alone());
  leave_hidden_amx_alone();
  CHECK(std::string(std::getenv("ONEDNN_MAX_CPU_ISA")) == "AVX2");
  unsetenv("ONEDNN_MAX_CPU_ISA");
  const bool needs = needs_amx_left_alone();
  leave_hidden_amx_alone();
  CHECK((std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) == needs);
  CHECK_FALSE(needs_amx_left_alone());
  if (!kept.empty()) setenv("ONEDNN_MAX_CPU_ISA", kept.c_str(), 1);
}

TEST_CASE("float16 is multiplied where Linux lists the instructions") {
  std::ifstream file("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(fast_products().float16 == (text.find(" avx512_fp16") != std::string::npos));
}

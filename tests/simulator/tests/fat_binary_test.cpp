// Tests binaries that the simulated CUDA runtime cannot read, and kernels that are missing in them.
#include "simulator/cuda/fat_binary.h"

#include <doctest/doctest.h>
#include <fatbinary_section.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "simulator/cuda/kernel_registry.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

constexpr std::string_view kNothing = ".version 8.0\n.target sm_80\n.address_size 64\n";

// A fat binary with one entry. It has the parts of nvcc's layout that fat_binary.cpp reads.
class FatBinary {
 public:
  explicit FatBinary(uint32_t architecture, uint16_t kind = 1, uint64_t flags = 0) {
    put<uint32_t>(0xba55ed50);
    put<uint16_t>(1);
    put<uint16_t>(16);
    put<uint64_t>(64 + kNothing.size() + 1);
    put<uint16_t>(kind);
    put<uint16_t>(0x101);
    put<uint32_t>(64);
    put<uint64_t>(kNothing.size() + 1);
    put<uint64_t>(0);
    put<uint32_t>(0);
    put<uint32_t>(architecture);
    put<uint64_t>(0);
    put<uint64_t>(flags);
    bytes_.resize(16 + 64);
    bytes_.insert(bytes_.end(), kNothing.begin(), kNothing.end());
    bytes_.push_back(0);
  }

  char& at(size_t byte) { return bytes_.at(byte); }
  // Returns a wrapper around the bytes. It is valid until the next call.
  const void* wrapper() {
    wrapper_ = {.magic = FATBINC_MAGIC,
                .version = FATBINC_VERSION,
                .data = reinterpret_cast<const unsigned long long*>(bytes_.data()),
                .filename_or_fatbins = nullptr};
    return &wrapper_;
  }

 private:
  template <class T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }

  std::vector<char> bytes_;
  __fatBinC_Wrapper_t wrapper_{};
};

}  // namespace

TEST_CASE("the PTX that a GPU would take is read out of an object, and no other") {
  CHECK(ptx_of(FatBinary(80).wrapper()) == kNothing);
  CHECK(ptx_of(FatBinary(75).wrapper()) == kNothing);
  constexpr const char* kNone = "a fat binary without PTX of compute_80 or before; compile with";
  CHECK_THROWS_WITH_AS(ptx_of(FatBinary(90).wrapper()), doctest::Contains(kNone), ptx::Objection);
  constexpr uint16_t kMachineCode = 2;
  CHECK_THROWS_WITH_AS(ptx_of(FatBinary(80, kMachineCode).wrapper()), doctest::Contains(kNone),
                       ptx::Objection);
  for (const uint64_t compressed : {uint64_t{0x2000}, uint64_t{0x8000}}) {
    CHECK_THROWS_WITH_AS(ptx_of(FatBinary(80, 1, compressed).wrapper()),
                         doctest::Contains("compressed PTX"), ptx::Objection);
  }
}

TEST_CASE("a fat binary of another layout is refused") {
  for (const size_t byte : {size_t{0}, size_t{4}}) {  // the magic number and the version
    FatBinary changed(80);
    changed.at(byte) = 7;
    CHECK_THROWS_WITH_AS(ptx_of(changed.wrapper()),
                         doctest::Contains("no fat binary of a known layout (magic"),
                         ptx::Objection);
  }
}

TEST_CASE("a kernel that its object's PTX has not is refused by its name") {
  FatBinary binary(80);
  KernelRegistry registry;
  const int host = 0;
  void** const handle = registry.add_binary(binary.wrapper());
  registry.add_kernel(handle, &host, "_Z4lostv");
  CHECK_THROWS_WITH_AS(registry.find(&host), "kernel _Z4lostv is not in its module's PTX",
                       ptx::Objection);
}

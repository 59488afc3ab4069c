// Tests the state of bytes in a simulated device's memory, and launches that access part of a large
// memory.
#include "simulator/ptx/device_memory.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/buffer.h"
#include "simulator/ptx/launch.h"

using namespace fsdp::testing::ptx;

namespace {

constexpr int64_t kWindow = 65536;

std::string objection(const std::function<void()>& act) {
  try {
    act();
  } catch (const Objection& found) {
    return found.what();
  }
  return "";
}

// Returns a module whose kernel sets p0[i] = i. Here i is the thread's 64-bit number in the launch.
const Module& numbers() {
  static const Module module = parse(R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p0)
{
.reg .b32 %r<4>;
.reg .b64 %d<8>;
ld.param.u64 %d0, [p0];
mov.u32 %r0, %ctaid.x;  mov.u32 %r1, %ntid.x;  mov.u32 %r2, %tid.x;
mul.wide.u32 %d1, %r0, %r1;
cvt.u64.u32 %d2, %r2;
add.s64 %d3, %d1, %d2;
shl.b64 %d4, %d3, 3;
add.s64 %d5, %d0, %d4;
st.global.u64 [%d5], %d3;
ret;
})");
  return module;
}

Launch numbers_into(const void* data, uint32_t blocks, std::vector<uint64_t> only = {}) {
  std::vector<std::byte> parameters(8);
  std::memcpy(parameters.data(), &data, 8);
  return {.kernel = &numbers().at("k"),
          .grid = {.x = blocks},
          .block = {.x = 64},
          .parameters = parameters,
          .seed = 1,
          .only_blocks = std::move(only)};
}

}  // namespace

TEST_CASE("bytes are defined one by one, over the borders of what is kept together") {
  const fsdp::Buffer buffer = fsdp::allocate_host(4 * kWindow);
  DeviceMemory memory;
  memory.add(buffer.data(), 4 * kWindow, "x", false);
  for (const int64_t begin : {int64_t{0}, int64_t{3}, kWindow - 100, kWindow - 7}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{63}, int64_t{200}, 2 * kWindow + 1}) {
      DeviceMemory fresh;
      fresh.add(buffer.data(), 4 * kWindow, "x", false);
      fresh.define(buffer.at(begin), bytes);
      CHECK_NOTHROW(fresh.require_defined(buffer.at(begin), bytes));
      CHECK_THROWS_AS(fresh.require_defined(buffer.at(begin), bytes + 1), Objection);
      if (begin > 0) CHECK_THROWS_AS(fresh.require_defined(buffer.at(begin - 1), 2), Objection);
    }
  }
  CHECK(objection([&] { memory.require_defined(buffer.at(8), 4); }) ==
        "a read of 4 bytes at byte 8 of x, of which nobody has written all");
}

TEST_CASE("what is no memory any more is told by its name") {
  const fsdp::Buffer buffer = fsdp::allocate_host(4096);
  DeviceMemory memory;
  memory.add(buffer.data(), 1000, "losses", true);
  CHECK(memory.describe(reinterpret_cast<uint64_t>(buffer.at(996)), 8) ==
        "8 bytes at byte 996 of losses, over its end");
  CHECK(memory.describe(reinterpret_cast<uint64_t>(buffer.at(1004)), 4)
            .find("outside of device memory, 4 bytes behind losses") != std::string::npos);
  memory.remove(buffer.data());
  CHECK(objection([&] { memory.define(buffer.at(8), 4); }) == "4 bytes in losses, which was freed");
}

TEST_CASE("of an allocation that is carved only the parts are memory") {
  const fsdp::Buffer buffer = fsdp::allocate_host(4096);
  DeviceMemory memory;
  memory.add(buffer.data(), 4096, "pool", true);
  memory.carve(buffer.at(0), 512, "a");
  memory.carve(buffer.at(512), 512, "b");
  CHECK_NOTHROW(memory.define(buffer.at(0), 512));
  CHECK_THROWS_AS(memory.require_defined(buffer.at(512), 4), Objection);
  CHECK_THROWS_AS(memory.define(buffer.at(1024), 4), Objection);
  CHECK_THROWS_AS(memory.define(buffer.at(508), 8), Objection);
  CHECK(objection([&] { memory.carve(buffer.at(256), 1024, "c"); }).find("there is no room") !=
        std::string::npos);
  CHECK_THROWS_AS(memory.carve(buffer.at(4000), 512, "c"), Objection);
  memory.give_back(buffer.at(0));
  CHECK(objection([&] { memory.define(buffer.at(0), 4); }) == "4 bytes in a, which was given back");
  memory.carve(buffer.at(0), 256, "again");
  CHECK_NOTHROW(memory.define(buffer.at(0), 256));
  memory.remove(buffer.data());
  CHECK(objection([&] { memory.define(buffer.at(512), 4); }) == "4 bytes in pool, which was freed");
}

TEST_CASE("a launch tells which bytes it touched, and a part of it runs alone") {
  const fsdp::Buffer buffer = fsdp::allocate_host(3 * kWindow);
  DeviceMemory memory;
  memory.add(buffer.data(), 3 * kWindow, "x", false);
  const auto begin = reinterpret_cast<uint64_t>(buffer.data());
  const uint32_t blocks = 3 * kWindow / 8 / 64;
  const LaunchReport all = run(numbers_into(buffer.data(), blocks), memory);
  CHECK(all.written == std::vector<ByteRange>{{begin, begin + 3 * kWindow}});
  CHECK(all.read.empty());
  const LaunchReport some = run(numbers_into(buffer.data(), blocks, {0, 2, 3}), memory);
  CHECK(some.written == std::vector<ByteRange>{{begin, begin + 512}, {begin + 1024, begin + 2048}});
  CHECK(some.stores == 3 * 64);
  CHECK_THROWS_AS(run(numbers_into(buffer.data(), 3, {3}), memory), Objection);
}

TEST_CASE("threads beyond 2^31 are told apart, over memory of which a part is touched") {
  const uint32_t blocks = 1U << 27;  // 2^33 threads, 64 GiB
  const int64_t bytes = int64_t{blocks} * 64 * 8;
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(data != MAP_FAILED);
  DeviceMemory memory;
  memory.add(data, bytes, "x", false);
  const LaunchReport report =
      run(numbers_into(data, blocks, {0, 1, blocks / 2, blocks - 1}), memory);
  CHECK(report.stores == 4 * 64);
  const auto* values = static_cast<const int64_t*>(data);
  CHECK(values[64] == 64);
  CHECK(values[int64_t{blocks} * 32] == int64_t{blocks} * 32);
  CHECK(values[int64_t{blocks} * 64 - 1] == int64_t{blocks} * 64 - 1);
  CHECK(report.written.size() == 3);
  munmap(data, static_cast<size_t>(bytes));
}

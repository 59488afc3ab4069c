#include "runtime/buffer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "fsdp/error.h"
#include "support/sanitizers.h"

namespace fsdp {
namespace {

TEST_CASE("host memory is zeroed and aligned, for every size") {
  for (const int64_t bytes : {1, 3, 64, 1009, 256 * 1024 - 1, 256 * 1024, 1'000'003}) {
    CAPTURE(bytes);
    // There are two rounds, because the second may reuse memory that the first has written.
    for (int round = 0; round < 2; ++round) {
      const Buffer buffer = allocate_host(bytes);
      CHECK(buffer.bytes() == bytes);
      CHECK(reinterpret_cast<uintptr_t>(buffer.data()) % 64 == 0);
      const auto* begin = static_cast<const unsigned char*>(buffer.data());
      CHECK(std::all_of(begin, begin + bytes, [](unsigned char byte) { return byte == 0; }));
      std::memset(buffer.data(), 0xff, bytes);
    }
  }
}

TEST_CASE("an empty buffer is legal") {
  const Buffer buffer = allocate_host(0);
  CHECK(buffer.data() == nullptr);
  CHECK(buffer.bytes() == 0);
  CHECK(!buffer);
}

TEST_CASE("a buffer is given back once, by its last owner") {
  int releases = 0;
  int block = 0;
  {
    Buffer first(&block, 4, [&](void* data) {
      CHECK(data == &block);
      ++releases;
    });
    Buffer second = std::move(first);
    CHECK(second.at(2) == reinterpret_cast<std::byte*>(&block) + 2);
    Buffer third;
    third = std::move(second);
    CHECK(releases == 0);
    CHECK(third);
  }
  CHECK(releases == 1);
}

TEST_CASE("assigning to a buffer gives back what it held") {
  int releases = 0;
  int block = 0;
  Buffer buffer(&block, 4, [&](void*) { ++releases; });
  buffer = Buffer();
  CHECK(releases == 1);
}

TEST_CASE("memory that the system does not have is refused with its size" *
          doctest::skip(kSanitized)) {
  CHECK_THROWS_WITH_AS(allocate_host(int64_t{1} << 60),
                       "out of host memory: cannot allocate 1048576.0 TiB; hint: use more ranks, "
                       "smaller units or a smaller batch",
                       DeviceError);
}

}  // namespace
}  // namespace fsdp

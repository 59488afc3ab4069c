#include "comm/reduce/streaming_copy.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace fsdp {
namespace {

TEST_CASE("a streaming copy moves exactly the bytes asked for, wherever they begin and end") {
  constexpr int64_t kRoom = 700;
  std::vector<std::byte> from(kRoom);
  for (int64_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 31 + 1);
  int wrong = 0;
  for (int64_t from_at = 0; from_at < 70; from_at += 23) {
    for (int64_t to_at = 0; to_at < 70; ++to_at) {
      for (const int64_t bytes : {0, 1, 63, 64, 65, 128, 500}) {
        std::vector<std::byte> to(kRoom, std::byte{0xa5});
        copy_streaming(to.data() + to_at, from.data() + from_at, bytes);
        finish_streaming();
        for (int64_t i = 0; i < kRoom; ++i) {
          const bool inside = i >= to_at && i < to_at + bytes;
          wrong += to[i] != (inside ? from[i - to_at + from_at] : std::byte{0xa5});
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a streaming copy onto itself changes nothing") {
  std::vector<std::byte> bytes(100, std::byte{7});
  copy_streaming(bytes.data(), bytes.data(), 100);
  CHECK(bytes == std::vector<std::byte>(100, std::byte{7}));
}

}  // namespace
}  // namespace fsdp

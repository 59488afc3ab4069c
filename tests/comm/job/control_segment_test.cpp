// Tests the layout of a control segment.
#include "comm/job/control_segment.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/buffer.h"

namespace fsdp {
namespace {

// Returns the bytes of a segment that each of its objects has, as {begin, end} from its beginning.
std::vector<std::pair<int64_t, int64_t>> objects_of(const Buffer& memory, int world,
                                                    RankRange local) {
  const ControlSegment control(memory.data(), world, local);
  std::vector<std::pair<int64_t, int64_t>> objects;
  const auto add = [&](const auto& object) {
    const auto* at = reinterpret_cast<const std::byte*>(&object);
    const int64_t begin = at - static_cast<const std::byte*>(memory.data());
    objects.emplace_back(begin, begin + int64_t{sizeof object});
  };
  add(control.header());
  add(control.failure());
  for (int channel = 0; channel < kChannels; ++channel) {
    add(control.wait_queue(channel));
    for (int i = 0; i < local.count; ++i) add(control.endpoint(channel, local.begin + i));
  }
  for (int rank = 0; rank < world; ++rank) {
    add(control.status(rank));
    for (int order = 0; order < kOrders; ++order) {
      if (control.is_local(rank)) {
        add(control.posted(rank, order));
        CHECK(&control.last_posted(rank, order) == &control.posted(rank, order).last);
      } else {
        add(control.last_posted(rank, order));
      }
    }
  }
  return objects;
}

TEST_CASE("the objects of a segment fill it without an overlap") {
  for (const RankRange local : {RankRange{0, 5}, {0, 1}, {2, 2}, {4, 1}}) {
    CAPTURE(local.begin);
    CAPTURE(local.count);
    const Buffer memory = allocate_host(ControlSegment::bytes_for(5, local));
    auto objects = objects_of(memory, 5, local);
    std::ranges::sort(objects);
    for (size_t i = 1; i < objects.size(); ++i) CHECK(objects[i].first >= objects[i - 1].second);
    CHECK(objects.back().second <= memory.bytes());
    CHECK(objects.back().second > memory.bytes() - 128);
  }
}

TEST_CASE("a process of a large job needs little memory for the ranks of other hosts") {
  CHECK(ControlSegment::bytes_for(1024, {7, 1}) < 1 << 20);
  CHECK(ControlSegment::bytes_for(1024, {4, 4}) <= 2 << 20);
}

}  // namespace
}  // namespace fsdp

#include "simulator/cuda/access_history.h"

#include <doctest/doctest.h>

#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

constexpr int kStreams = 3;
constexpr uint64_t kBytes = 24;

// A history that keeps every access to every byte, and compares accesses one by one.
class PlainHistory {
 public:
  // Returns true if one of these bytes has a conflict.
  bool touch(const Operation& now, const ptx::ByteRange& bytes, bool writes) {
    bool found = false;
    for (uint64_t byte = bytes.begin; byte < bytes.end; ++byte) {
      for (const auto& [before, wrote] : accesses_[byte]) {
        found |= (wrote || writes) && before != &now && !happens_before(*before, now);
      }
      accesses_[byte].emplace_back(&now, writes);
    }
    return found;
  }

 private:
  std::map<uint64_t, std::vector<std::pair<const Operation*, bool>>> accesses_;
};

}  // namespace

TEST_CASE("the first conflict is found where every access is looked through, and no other is") {
  std::mt19937 random(7);
  int with_conflict = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    std::array<SimulatedStream, kStreams> streams;
    for (int i = 0; i < kStreams; ++i) streams[i].number = i;
    OperationLog log;
    AccessHistory history;
    PlainHistory plain;
    for (int step = 0; step < 60; ++step) {
      SimulatedStream& stream = streams[random() % kStreams];
      if (random() % 3 != 0) {  // the stream waits for another one
        stream.clock.join(streams[random() % kStreams].clock);
        continue;
      }
      stream.clock.tick(stream.number);
      const Operation& now = log.add("work", stream);
      const uint64_t begin = random() % kBytes;
      const ptx::ByteRange bytes{begin, begin + random() % (kBytes - begin + 1)};
      const bool writes = random() % 2 == 0;
      bool found = false;
      history.touch(now, bytes, writes, [&](const Conflict& conflict) {
        found = true;
        CHECK(conflict.now == &now);
        CHECK_FALSE(happens_before(*conflict.before, now));
      });
      const bool expected = plain.touch(now, bytes, writes);
      REQUIRE(found == expected);
      if (!found) continue;
      ++with_conflict;
      break;  // later reports may follow from this race
    }
  }
  CHECK(with_conflict > 500);
  CHECK(with_conflict < 2000);
}

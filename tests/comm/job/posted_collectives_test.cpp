// Tests the record of the collectives that a rank has issued on a device. Its peers read this
// record.
#include "comm/job/posted_collectives.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

namespace fsdp {
namespace {

// Returns a record. All its fields are derived from its sequence number.
PostedCollective at_place(uint64_t sequence) {
  const CollectivePart part{nullptr, nullptr, static_cast<int64_t>(3 * sequence), DType::kFloat32};
  const auto operation = sequence % 2 == 0 ? Operation::kAllGather : Operation::kReduceScatter;
  return {.record = make_record({operation, {&part, 1}, {.sequence = sequence, .label = "layer"}}),
          .communicator = sequence * 0x9e3779b97f4a7c15};
}

bool is_of_place(const PostedCollective& collective, uint64_t place) {
  const PostedCollective expected = at_place(place);
  return collective.communicator == expected.communicator &&
         fingerprint_of(collective.record) == fingerprint_of(expected.record);
}

TEST_CASE("what was posted is found by its place, until as many came after it as are kept") {
  const auto posted = std::make_unique<PostedCollectives>();
  CHECK_FALSE(find_posted(*posted, 0));
  CHECK_FALSE(find_posted(*posted, 1));
  for (uint64_t place = 1; place <= PostedCollectives::kKept + 2; ++place) {
    post(*posted, at_place(place));
    CHECK(posted->last == place);
    CHECK_FALSE(find_mark(*posted, place + 1));
  }
  for (const uint64_t gone : {1, 2}) CHECK_FALSE(find_posted(*posted, gone));
  for (uint64_t place = 3; place <= PostedCollectives::kKept + 2; ++place) {
    REQUIRE(find_posted(*posted, place));
    CHECK(is_of_place(*find_posted(*posted, place), place));
    CHECK(find_mark(*posted, place) == mark_of(at_place(place)));
  }
}

TEST_CASE("what has no place in the host order is not posted") {
  const auto posted = std::make_unique<PostedCollectives>();
  post(*posted, at_place(0));
  CHECK(posted->last == 0);
  CHECK_FALSE(find_posted(*posted, 0));
}

TEST_CASE("who looks while it is written sees one collective or none") {
  const auto posted = std::make_unique<PostedCollectives>();
  constexpr uint64_t kPlaces = 20'000;
  std::atomic<bool> ends = false;
  std::atomic<int> found = 0, wrong = 0;
  std::thread reader([&] {
    while (!ends) {
      const uint64_t last = posted->last;
      for (const uint64_t place : {last, last + 1, last - PostedCollectives::kKept + 1}) {
        const auto collective = find_posted(*posted, place);
        const auto mark = find_mark(*posted, place);
        if (collective) ++found;
        if (collective && !is_of_place(*collective, place)) ++wrong;
        if (mark && *mark != mark_of(at_place(place))) ++wrong;
      }
    }
  });
  for (uint64_t place = 1; place <= kPlaces; ++place) post(*posted, at_place(place));
  while (found == 0) std::this_thread::yield();
  ends = true;
  reader.join();
  CHECK(wrong == 0);
}

TEST_CASE("of two ranks that post and look at each other one sees the other's") {
  struct Side {
    PostedCollectives posted;
    std::atomic<bool> saw;
  };
  for (uint64_t place = 1; place <= 2000; ++place) {
    static const auto sides = std::make_unique<std::array<Side, 2>>();
    const auto come = [&](int own) {
      post((*sides)[own].posted, at_place(place));
      (*sides)[own].saw = find_mark((*sides)[1 - own].posted, place).has_value();
    };
    std::thread other([&] { come(1); });
    come(0);
    other.join();
    REQUIRE(((*sides)[0].saw || (*sides)[1].saw));
  }
}

}  // namespace
}  // namespace fsdp

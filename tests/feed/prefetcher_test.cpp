#include <doctest/doctest.h>
#include <fsdp/prefetcher.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>

namespace fsdp {
namespace {

TEST_CASE("items come in order, also ones that can only be moved") {
  Prefetcher<std::unique_ptr<int64_t>> items(
      1000, 3, [](int64_t index) { return std::make_unique<int64_t>(index); });
  for (int64_t i = 0; i < 1000; ++i) CHECK(*items.next() == i);
  CHECK_THROWS_AS(items.next(), StateError);
}

TEST_CASE("no more than the depth is made ahead") {
  for (const int64_t depth : {1, 2, 5}) {
    std::atomic<int64_t> asked{0};  // incremented after next(), so it may be one too low
    std::atomic<int64_t> furthest{0};
    Prefetcher<int64_t> items(200, depth, [&](int64_t index) {
      furthest = std::max<int64_t>(furthest, index - asked);
      return index;
    });
    for (int64_t i = 0; i < 200; ++i) {
      CHECK(items.next() == i);
      ++asked;
    }
    // The limit is depth - 1 without the race: an item may start between next() and ++asked.
    CHECK(furthest <= depth);
  }
}

TEST_CASE("as many as the depth are made without anyone asking") {
  std::promise<void> made;
  Prefetcher<int64_t> items(10, 4, [&](int64_t index) {
    if (index == 3) made.set_value();
    return index;
  });
  made.get_future().wait();
  CHECK(items.next() == 0);
}

TEST_CASE("an error arrives where its item would, as it was thrown, and stays") {
  Prefetcher<std::string> items(10, 8, [](int64_t index) -> std::string {
    if (index == 2) {
      throw IoError(ExitCode::kCorruptData, {.what = "broken", .where = "f, byte 7"});
    }
    return std::to_string(index);
  });
  CHECK(items.next() == "0");
  CHECK(items.next() == "1");
  for (int i = 0; i < 2; ++i) {
    try {
      items.next();
      FAIL("an item");
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
      CHECK(std::string(error.what()) == "broken (f, byte 7)");
    }
  }
}

TEST_CASE("an unused queue, a full one and an empty one end at once") {
  std::atomic<int64_t> made{0};
  for (int i = 0; i < 100; ++i) {
    const Prefetcher<int64_t> unused(1'000'000, 2, [&](int64_t index) { return ++made, index; });
    Prefetcher<int64_t> begun(1'000'000, 2, [&](int64_t index) { return ++made, index; });
    CHECK(begun.next() == 0);
  }
  CHECK(made <= 100 * 5);
  Prefetcher<int64_t> none(0, 1, [](int64_t index) { return index; });
  CHECK_THROWS_AS(none.next(), StateError);
}

}  // namespace
}  // namespace fsdp

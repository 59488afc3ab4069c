#include "memory/memory_meter.h"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/out_of_memory.h"

using namespace fsdp;

namespace {

constexpr int64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("a meter adds up what the engine and LibTorch hold, and keeps the peaks of both") {
  MemoryMeter meter;
  meter.take(MemoryOwner::kEngine, 10);
  meter.take(MemoryOwner::kTorch, 4);
  meter.give(MemoryOwner::kEngine, 7);
  meter.take(MemoryOwner::kTorch, 5);
  const MeterReading reading = meter.reading();
  CHECK(reading.now == MeteredBytes{.engine = 3, .torch = 9});
  CHECK(reading.peak == MeteredBytes{.engine = 10, .torch = 4});
  CHECK(reading.peaks == MeteredBytes{.engine = 10, .torch = 9});
  meter.reset_peak();
  CHECK(meter.reading().peak == reading.now);
  CHECK(meter.reading().peaks == reading.now);
}

TEST_CASE("what would pass the limit is refused, and nothing has changed then") {
  MemoryMeter meter;
  meter.take(MemoryOwner::kEngine, 3 * kMiB);
  meter.set_limit(4 * kMiB);
  CHECK_THROWS_WITH_AS(meter.take(MemoryOwner::kTorch, kMiB + 1),
                       "out of memory: 1.0 MiB are needed, but the limit of 4.0 MiB leaves 1.0 MiB",
                       OutOfMemory);
  CHECK(meter.reading().now == MeteredBytes{.engine = 3 * kMiB});
  CHECK(meter.reading().peak.total() == 3 * kMiB);
  meter.take(MemoryOwner::kTorch, kMiB);
  CHECK_THROWS_AS(meter.take(MemoryOwner::kEngine, 1), OutOfMemory);
  meter.give(MemoryOwner::kTorch, 1);
  meter.take(MemoryOwner::kEngine, 1);
  CHECK(meter.reading().now.total() == 4 * kMiB);
}

TEST_CASE("a limit below what is held leaves that alone, and allows nothing more") {
  MemoryMeter meter;
  meter.take(MemoryOwner::kEngine, 3 * kMiB);
  meter.set_limit(kMiB);
  CHECK_THROWS_WITH_AS(meter.take(MemoryOwner::kEngine, 1),
                       "out of memory: 1 B are needed, but the limit of 1.0 MiB leaves 0 B",
                       OutOfMemory);
  meter.set_limit(0);
  meter.take(MemoryOwner::kEngine, kMiB);
  CHECK(meter.reading().now.engine == 4 * kMiB);
}

TEST_CASE("a refusal hears of the demand, may read the meter, and throws what it likes") {
  MemoryMeter meter;
  CHECK(!meter.has_refusal());
  MemoryDemand heard;
  meter.set_limit(8);
  meter.set_refusal([&](const MemoryDemand& demand) {
    heard = demand;
    CHECK(meter.reading().now == demand.now);
    if (demand.bytes < 100) throw InvalidArgument({.what = "too much"});
  });
  CHECK(meter.has_refusal());
  meter.take(MemoryOwner::kEngine, 5);
  CHECK_THROWS_WITH_AS(meter.take(MemoryOwner::kTorch, 4), "too much", InvalidArgument);
  CHECK(heard.bytes == 4);
  CHECK(heard.of == MemoryOwner::kTorch);
  CHECK(heard.now == MeteredBytes{.engine = 5});
  CHECK(heard.limit == 8);
  CHECK_THROWS_AS(meter.take(MemoryOwner::kTorch, 100), OutOfMemory);  // it has returned
}

TEST_CASE("what LibTorch says of itself counts, and the next demand tells that it is too much") {
  MemoryMeter meter;
  meter.set_limit(10 * kMiB);
  meter.take(MemoryOwner::kEngine, 4 * kMiB);
  meter.observe_torch(6 * kMiB);
  meter.take(MemoryOwner::kEngine, 0);
  meter.observe_torch(7 * kMiB);
  CHECK_THROWS_WITH_AS(meter.take(MemoryOwner::kTorch, 0),
                       "out of memory: 11.0 MiB are held, more than the limit of 10.0 MiB",
                       OutOfMemory);
  meter.observe_torch(2 * kMiB);
  meter.take(MemoryOwner::kEngine, 4 * kMiB);
  CHECK(meter.reading().now == MeteredBytes{.engine = 8 * kMiB, .torch = 2 * kMiB});
  CHECK(meter.reading().peak == MeteredBytes{.engine = 4 * kMiB, .torch = 7 * kMiB});
}

TEST_CASE("a meter that threads share loses nothing") {
  MemoryMeter meter;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&meter, of = i % 2 == 0 ? MemoryOwner::kEngine : MemoryOwner::kTorch] {
      for (int round = 0; round < 1000; ++round) {
        meter.take(of, 3);
        meter.give(of, 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(meter.reading().now == MeteredBytes{.engine = 2000, .torch = 2000});
}

TEST_CASE("a metered buffer is counted until it goes, also after whoever made it") {
  auto meter = std::make_shared<MemoryMeter>();
  Buffer outer;
  {
    Buffer buffer = metered(meter, 256, [] { return allocate_host(256); });
    CHECK(buffer.bytes() == 256);
    CHECK(meter->reading().now == MeteredBytes{.engine = 256});
    outer = std::move(buffer);
  }
  const std::weak_ptr<MemoryMeter> watched = meter;
  CHECK(meter->reading().now.engine == 256);
  meter.reset();
  CHECK(!watched.expired());
  outer = Buffer();
  CHECK(watched.expired());
}

TEST_CASE("a buffer that cannot be had is not counted, nor asked for beyond the limit") {
  const auto meter = std::make_shared<MemoryMeter>();
  CHECK_THROWS_AS(
      metered(meter, 64, []() -> Buffer { throw std::runtime_error("the device has none"); }),
      std::runtime_error);
  CHECK(meter->reading().now.total() == 0);
  meter->set_limit(63);
  bool asked = false;
  CHECK_THROWS_AS(metered(meter, 64,
                          [&] {
                            asked = true;
                            return allocate_host(64);
                          }),
                  OutOfMemory);
  CHECK(!asked);
}

TEST_CASE("without a meter a buffer is the allocator's own, and empty ones count nothing") {
  CHECK(metered(nullptr, 64, [] { return allocate_host(64); }).bytes() == 64);
  const auto meter = std::make_shared<MemoryMeter>();
  CHECK(!metered(meter, 0, [] { return allocate_host(0); }));
  CHECK(meter.use_count() == 1);
}

#include "shard/buffer_pool.h"

#include <doctest/doctest.h>

using namespace fsdp;

namespace {

struct Pool {
  explicit Pool(SlotReuse reuse = SlotReuse::kLastReturned)
      : pool(cpu_device(), MemoryCategory::kParameterSlots, ledger, reuse, [this](int64_t bytes) {
          ++allocations;
          return allocate_host(bytes);
        }) {}
  MemoryLedger ledger;
  int allocations = 0;
  BufferPool pool;
};

}  // namespace

TEST_CASE("planned slots are allocated once and then reused") {
  Pool p;
  p.pool.plan({{64, 2}});
  for (int round = 0; round < 3; ++round) {
    Slot* a = p.pool.acquire(64);
    Slot* b = p.pool.acquire(64);
    CHECK(a != b);
    p.pool.release(a);
    p.pool.release(b);
  }
  CHECK(p.allocations == 2);
  CHECK(p.ledger.stats().overflow_slots == 0);
  CHECK(p.ledger.stats().held_bytes == 128);
  CHECK(p.ledger.stats().in_use.total() == 0);
  CHECK(p.ledger.stats().peak[MemoryCategory::kParameterSlots] == 128);
}

TEST_CASE("a prefetch gets no slot beyond the plan, a demand does and is counted") {
  Pool p;
  p.pool.plan({{64, 1}});
  Slot* planned = p.pool.try_acquire(64);
  REQUIRE(planned != nullptr);
  CHECK(p.pool.try_acquire(64) == nullptr);
  CHECK(p.pool.try_acquire(128) == nullptr);  // this size is not planned
  Slot* overflow = p.pool.acquire(64);
  CHECK(overflow != nullptr);
  CHECK(p.ledger.stats().overflow_slots == 1);
  p.pool.release(overflow);
  p.pool.release(planned);
  CHECK(p.ledger.stats().held_bytes == 64);  // the slot beyond the plan was freed
}

TEST_CASE("zero bytes take no slot") {
  Pool p;
  CHECK(p.pool.acquire(0) == nullptr);
  p.pool.release(nullptr);
  CHECK(p.allocations == 0);
}

TEST_CASE("a smaller plan gives slots back as they become free") {
  Pool p;
  p.pool.plan({{64, 3}});
  Slot* a = p.pool.acquire(64);
  Slot* b = p.pool.acquire(64);
  Slot* c = p.pool.acquire(64);
  p.pool.release(c);
  p.pool.plan({{64, 1}});
  CHECK(p.ledger.stats().held_bytes == 128);  // the free slot was freed
  p.pool.release(a);
  CHECK(p.ledger.stats().held_bytes == 64);
  p.pool.release(b);
  CHECK(p.ledger.stats().held_bytes == 64);
  CHECK((p.pool.planned() == std::vector<PlannedSlots>{{MemoryCategory::kParameterSlots, 64, 1}}));
}

TEST_CASE("inline streams reuse the warm slot, threaded ones the oldest") {
  for (const SlotReuse reuse : {SlotReuse::kLastReturned, SlotReuse::kFirstReturned}) {
    Pool p(reuse);
    p.pool.plan({{64, 2}});
    Slot* a = p.pool.acquire(64);
    Slot* b = p.pool.acquire(64);
    p.pool.release(a);
    p.pool.release(b);
    CHECK(p.pool.acquire(64) == (reuse == SlotReuse::kLastReturned ? b : a));
  }
}

TEST_CASE("demands beyond the plan are learned, those that an older plan allowed are not") {
  Pool p;
  p.pool.plan({{64, 2}});
  const auto take_and_give = [&](int count) {
    std::vector<Slot*> taken;
    for (int i = 0; i < count; ++i) taken.push_back(p.pool.acquire(64));
    for (Slot* slot : taken) p.pool.release(slot);
  };
  take_and_give(2);
  p.pool.plan({{64, 1}});
  CHECK_FALSE(p.pool.learn());
  CHECK(p.pool.planned()[0].count == 1);
  take_and_give(3);
  CHECK(p.pool.learn());
  p.pool.plan({{64, 1}});
  CHECK(p.pool.planned()[0].count == 3);
  take_and_give(3);
  CHECK_FALSE(p.pool.learn());
}

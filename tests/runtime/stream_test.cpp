
#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fsdp/error.h"
#include "support/cpu_streams.h"

namespace fsdp {
namespace {

using Kinds = std::vector<testing::CpuStreams>;
const Kinds kKinds{testing::CpuStreams::kInline, testing::CpuStreams::kThreaded};

TEST_CASE("a stream runs its work in the order of issue") {
  for (const testing::CpuStreams kind : kKinds) {
    for (const int count : {0, 1, 3, 997}) {
      const auto stream = testing::make_cpu_stream(kind, "order");
      std::vector<int> seen;
      for (int i = 0; i < count; ++i) stream->call([&seen, i] { seen.push_back(i); });
      stream->synchronize();
      REQUIRE(seen.size() == static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) CHECK(seen[i] == i);
    }
  }
}

TEST_CASE("an inline stream works in the caller's thread and is done on return") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "inline");
  CHECK(stream->is_inline());
  std::thread::id ran_in;
  stream->call([&] { ran_in = std::this_thread::get_id(); });
  CHECK(ran_in == std::this_thread::get_id());
}

TEST_CASE("a threaded stream works beside the caller") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "beside");
  CHECK(!stream->is_inline());
  std::latch go(1);
  std::thread::id ran_in;
  stream->call([&] {
    go.wait();
    ran_in = std::this_thread::get_id();
  });
  go.count_down();  // not reached if the work ran in this thread
  stream->synchronize();
  CHECK(ran_in != std::this_thread::get_id());
}

TEST_CASE("a stream that waits for an event sees what was done before it") {
  for (const testing::CpuStreams first_kind : kKinds) {
    for (const testing::CpuStreams second_kind : kKinds) {
      const auto first = testing::make_cpu_stream(first_kind, "first");
      const auto second = testing::make_cpu_stream(second_kind, "second");
      int value = 0;
      int seen = -1;
      for (int i = 1; i <= 200; ++i) {
        Event written = cpu_device().make_event();
        Event read = cpu_device().make_event();
        first->call([&, i] { value = i; });
        first->record(written);
        second->wait(written);
        second->call([&] { seen = value; });
        second->record(read);
        first->wait(read);  // the next write must not overtake this read
        read.synchronize();
        CHECK(seen == i);
      }
    }
  }
}

TEST_CASE("an event never recorded is reached, and waiting for it is nothing") {
  const Event event = cpu_device().make_event();
  CHECK(event.reached());
  event.synchronize();
  for (const testing::CpuStreams kind : kKinds) {
    const auto stream = testing::make_cpu_stream(kind, "none");
    stream->wait(event);
    stream->synchronize();
  }
}

TEST_CASE("recording again moves the mark") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "again");
  std::latch go(1);
  Event event = cpu_device().make_event();
  stream->record(event);
  event.synchronize();
  CHECK(event.reached());
  stream->call([&] { go.wait(); });
  stream->record(event);
  CHECK(!event.reached());
  go.count_down();
  event.synchronize();
  CHECK(event.reached());
}

TEST_CASE("work that throws on an inline stream throws to the caller") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "throws");
  CHECK_THROWS_WITH_AS(stream->call([] { throw std::runtime_error("lost"); }), "lost",
                       std::runtime_error);
  int ran = 0;
  stream->call([&] { ++ran; });
  CHECK(ran == 1);
}

TEST_CASE("work that throws on a threaded stream stops it, and every wait says why") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "fails");
  std::atomic<int> ran{0};
  Event before = cpu_device().make_event();
  Event after = cpu_device().make_event();
  stream->call([&] { ++ran; });
  stream->record(before);
  stream->call([] { throw CommError({.what = "a rank died"}); });
  stream->call([&] { ++ran; });
  stream->record(after);
  before.synchronize();
  CHECK_THROWS_WITH_AS(after.synchronize(), "a rank died", CommError);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "a rank died", CommError);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "a rank died", CommError);
  CHECK(ran == 1);
}

TEST_CASE("work that is dropped after a failure may issue to its stream as it is destroyed") {
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "dropped");
  std::latch go(1);
  stream->call([&] {
    go.wait();
    throw std::runtime_error("first");
  });
  std::shared_ptr<void> held(nullptr, [&](void*) {
    try {
      stream->call([] {});
    } catch (const std::exception&) {  // the failure of the stream
    }
  });
  stream->call([held = std::move(held)] {});
  go.count_down();
  CHECK_THROWS(stream->synchronize());
}

TEST_CASE("a failure travels to the streams that wait for it") {
  for (const testing::CpuStreams kind : kKinds) {
    const auto failing = testing::make_cpu_stream(testing::CpuStreams::kThreaded, "failing");
    const auto waiting = testing::make_cpu_stream(kind, "waiting");
    Event event = cpu_device().make_event();
    failing->call([] { throw std::runtime_error("lost"); });
    failing->record(event);
    const auto wait = [&] {
      waiting->wait(event);
      waiting->synchronize();
    };
    CHECK_THROWS_WITH_AS(wait(), "lost", std::runtime_error);
  }
}

TEST_CASE("a stream that is destroyed finishes its work first") {
  std::atomic<int> ran{0};
  {
    const auto stream =
        testing::make_cpu_stream(testing::CpuStreams::kThreaded, "a name of more than 15");
    for (int i = 0; i < 100; ++i) stream->call([&] { ++ran; });
  }
  CHECK(ran == 100);
}

TEST_CASE("memory that a stream holds lives until its work so far is done, and no longer") {
  for (const auto kind : kKinds) {
    const auto stream = testing::make_cpu_stream(kind, "holds");
    const bool threaded = kind == testing::CpuStreams::kThreaded;
    std::latch go(threaded ? 1 : 0);
    auto memory = std::make_shared<int>(7);
    const std::weak_ptr<int> watched = memory;
    stream->call([&] { go.wait(); });
    stream->hold(std::move(memory));
    CHECK(watched.expired() == !threaded);
    if (threaded) go.count_down();
    stream->synchronize();
    // The worker destroys a task before it waits for the next one.
    stream->call([] {});
    stream->synchronize();
    CHECK(watched.expired());
  }
}

class OtherDevice final : public Device {
 public:
  std::string_view name() const override { return "other"; }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) const override { return nullptr; }
  Stream& compute_stream(void* /*native*/) const override { return cpu_device().compute_stream(); }
  Buffer allocate(int64_t, MemoryKind) const override { return {}; }
  const kernels::KernelTable* kernels() const override { return nullptr; }
};

class OtherDeviceStream final : public Stream {
 public:
  using Stream::Stream;
  void synchronize() override {}
  void read(void*, const void*, int64_t) override {}
  void copy(void*, const void*, int64_t) override {}
  bool is_inline() const override { return false; }
  void call(std::function<void()> on_host) override { on_host(); }
  void tell_time(std::function<void(int64_t)> tell) override { tell(0); }

 private:
  std::shared_ptr<EventMark> mark(CodePlace) override { return nullptr; }
  void wait_for(const std::shared_ptr<EventMark>&, CodePlace) override {}
};

TEST_CASE("a read and a copy come after the work that was issued before them") {
  for (const auto kind : kKinds) {
    const auto stream = testing::make_cpu_stream(kind, "own");
    int there = 0, read = 0, copied = 0;
    cpu_stream(*stream).run([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      there = 7;
    });
    stream->read(&read, &there, sizeof read);
    CHECK(read == 7);
    cpu_stream(*stream).run([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      there = 8;
    });
    stream->copy(&copied, &there, sizeof copied);
    cpu_stream(*stream).run([&] { there = 9; });
    stream->synchronize();
    CHECK(copied == 8);
  }
}

TEST_CASE("a stream of another device is refused where a CPU works") {
  const OtherDevice device;
  OtherDeviceStream other(device);
  CHECK_THROWS_WITH_AS(cpu_stream(other),
                       "a CPU kernel or communicator got the stream of another device; hint: put "
                       "the engine, the mesh and the module on one kind of device",
                       StateError);
  const auto stream = testing::make_cpu_stream(testing::CpuStreams::kInline, "cpu");
  CHECK(&cpu_stream(*stream) == stream.get());
}

TEST_CASE("an event of another device is refused, whether it is recorded or waited for") {
  const OtherDevice device;
  Event theirs = device.make_event();
  for (const auto kind : kKinds) {
    const auto stream = testing::make_cpu_stream(kind, "own");
    const auto text = doctest::Contains("a stream of cpu got an event of other");
    CHECK_THROWS_WITH_AS(stream->record(theirs), text, StateError);
    CHECK_THROWS_WITH_AS(stream->wait(theirs), text, StateError);
  }
}

}  // namespace
}  // namespace fsdp

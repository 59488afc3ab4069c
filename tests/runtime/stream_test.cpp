#include "runtime/stream.h"

#include <doctest/doctest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "fsdp/error.h"

namespace fsdp {
namespace {

using Kinds = std::vector<CpuStreams>;
const Kinds kKinds{CpuStreams::kInline, CpuStreams::kThreaded};

TEST_CASE("a stream runs its work in the order of issue") {
  for (const CpuStreams kind : kKinds) {
    for (const int count : {0, 1, 3, 997}) {
      const auto stream = make_cpu_stream(kind, "order");
      std::vector<int> seen;
      for (int i = 0; i < count; ++i) stream->run([&seen, i] { seen.push_back(i); });
      stream->synchronize();
      REQUIRE(seen.size() == static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) CHECK(seen[i] == i);
    }
  }
}

TEST_CASE("an inline stream works in the caller's thread and is done on return") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "inline");
  CHECK(stream->is_inline());
  std::thread::id ran_in;
  stream->run([&] { ran_in = std::this_thread::get_id(); });
  CHECK(ran_in == std::this_thread::get_id());
}

TEST_CASE("a threaded stream works beside the caller") {
  const auto stream = make_cpu_stream(CpuStreams::kThreaded, "beside");
  CHECK(!stream->is_inline());
  std::latch go(1);
  std::thread::id ran_in;
  stream->run([&] {
    go.wait();
    ran_in = std::this_thread::get_id();
  });
  go.count_down();  // would never be reached if the work ran here
  stream->synchronize();
  CHECK(ran_in != std::this_thread::get_id());
}

TEST_CASE("a stream that waits for an event sees what was done before it") {
  for (const CpuStreams first_kind : kKinds) {
    for (const CpuStreams second_kind : kKinds) {
      const auto first = make_cpu_stream(first_kind, "first");
      const auto second = make_cpu_stream(second_kind, "second");
      int value = 0;
      int seen = -1;
      for (int i = 1; i <= 200; ++i) {
        Event written;
        Event read;
        first->run([&, i] { value = i; });
        first->record(written);
        second->wait(written);
        second->run([&] { seen = value; });
        second->record(read);
        first->wait(read);  // the next write must not overtake the read
        read.synchronize();
        CHECK(seen == i);
      }
    }
  }
}

TEST_CASE("an event never recorded is reached, and waiting for it is nothing") {
  const Event event;
  CHECK(event.reached());
  event.synchronize();
  for (const CpuStreams kind : kKinds) {
    const auto stream = make_cpu_stream(kind, "none");
    stream->wait(event);
    stream->synchronize();
  }
}

TEST_CASE("recording again moves the mark") {
  const auto stream = make_cpu_stream(CpuStreams::kThreaded, "again");
  std::latch go(1);
  Event event;
  stream->record(event);
  event.synchronize();
  CHECK(event.reached());
  stream->run([&] { go.wait(); });
  stream->record(event);
  CHECK(!event.reached());
  go.count_down();
  event.synchronize();
  CHECK(event.reached());
}

TEST_CASE("work that throws on an inline stream throws to the caller") {
  const auto stream = make_cpu_stream(CpuStreams::kInline, "throws");
  CHECK_THROWS_WITH_AS(stream->run([] { throw std::runtime_error("lost"); }), "lost",
                       std::runtime_error);
  int ran = 0;
  stream->run([&] { ++ran; });
  CHECK(ran == 1);
}

TEST_CASE("work that throws on a threaded stream stops it, and every wait says why") {
  const auto stream = make_cpu_stream(CpuStreams::kThreaded, "fails");
  std::atomic<int> ran{0};
  Event before;
  Event after;
  stream->run([&] { ++ran; });
  stream->record(before);
  stream->run([] { throw CommError({.what = "a rank died"}); });
  stream->run([&] { ++ran; });
  stream->record(after);
  before.synchronize();
  CHECK_THROWS_WITH_AS(after.synchronize(), "a rank died", CommError);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "a rank died", CommError);
  CHECK_THROWS_WITH_AS(stream->synchronize(), "a rank died", CommError);
  CHECK(ran == 1);
}

TEST_CASE("a failure travels to the streams that wait for it") {
  for (const CpuStreams kind : kKinds) {
    const auto failing = make_cpu_stream(CpuStreams::kThreaded, "failing");
    const auto waiting = make_cpu_stream(kind, "waiting");
    Event event;
    failing->run([] { throw std::runtime_error("lost"); });
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
    const auto stream = make_cpu_stream(CpuStreams::kThreaded, "a name of more than 15");
    for (int i = 0; i < 100; ++i) stream->run([&] { ++ran; });
  }
  CHECK(ran == 100);
}

class OtherDeviceStream final : public Stream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  bool is_inline() const override { return false; }
};

TEST_CASE("a stream of another device is refused where a CPU works") {
  OtherDeviceStream other;
  CHECK_THROWS_WITH_AS(cpu_stream(other),
                       "a CPU kernel or communicator was given another device's stream; hint: "
                       "engine, mesh and module must be on one kind of device",
                       StateError);
  const auto stream = make_cpu_stream(CpuStreams::kInline, "cpu");
  CHECK(&cpu_stream(*stream) == stream.get());
}

}  // namespace
}  // namespace fsdp

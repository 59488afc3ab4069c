#include "simulator/guarded_memory.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <functional>
#include <string>

#include "kernels/fill.h"
#include "simulator/checked_device.h"
#include "simulator/tests/in_child.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("a read or write by the host is a fault that says so, and work of a stream is none") {
  const CheckedDevice device;
  for (const bool beside : {false, true}) {
    const Buffer memory = device.allocate(4096, MemoryKind::kDevice);
    auto* value = static_cast<volatile float*>(memory.data());
    for (const auto& touch : std::initializer_list<std::function<void()>>{
             [&] { static_cast<void>(*value); }, [&] { *value = 1; }}) {
      const End end = in_child(touch);
      CHECK(end.signal == SIGSEGV);
      CHECK(end.said.find("the host touched device memory") != std::string::npos);
    }
    const auto stream = device.make_stream({.name = "own", .runs_beside = beside});
    const kernels::FillRun run{memory.data(), 1024, DType::kFloat32};
    kernels::fill_nan(*stream, {&run, 1});
    float seen = 0;
    stream->read(&seen, memory.data(), sizeof seen);
    CHECK(seen != seen);
    CHECK(in_child([&] { *value = 1; }).signal == SIGSEGV);  // memory is closed again
  }
}

TEST_CASE("memory is open between the first opening and the last closing") {
  const Buffer memory = GuardedMemory::instance().allocate(100);
  auto* value = static_cast<volatile int*>(memory.data());
  {
    const AsDeviceWork outer;
    { const AsDeviceWork inner; }
    *value = 5;
    const Buffer later = GuardedMemory::instance().allocate(1);
    CHECK(*static_cast<volatile char*>(later.data()) == 0);
    CHECK(*value == 5);
  }
  CHECK(in_child([&] { *value = 6; }).signal == SIGSEGV);
}

TEST_CASE("memory that is taken again is zero, and other memory is nobody's business") {
  void* place = nullptr;
  {
    const Buffer memory = GuardedMemory::instance().allocate(5000);
    const AsDeviceWork work;
    place = memory.data();
    static_cast<char*>(place)[4999] = 1;
  }
  const Buffer again = GuardedMemory::instance().allocate(5000);
  CHECK(again.data() == place);
  const AsDeviceWork work;
  CHECK(static_cast<char*>(place)[4999] == 0);
  CHECK(GuardedMemory::instance().holds(place));
  CHECK_FALSE(GuardedMemory::instance().holds(&place));
}

// Runs a check on every kind of CPU stream.
#pragma once

#include <doctest/doctest.h>

#include "support/cpu_streams.h"

namespace fsdp::test {

template <class Check>
void on_each_stream(Check check) {
  for (const testing::CpuStreams kind :
       {testing::CpuStreams::kInline, testing::CpuStreams::kThreaded}) {
    CAPTURE(static_cast<int>(kind));
    const auto stream = testing::make_cpu_stream(kind, "kernels");
    check(static_cast<Stream&>(*stream));
    stream->synchronize();
  }
}

}  // namespace fsdp::test

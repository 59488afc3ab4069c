// Runs a check on every kind of CPU stream.
#pragma once

#include <doctest/doctest.h>

#include "runtime/stream.h"

namespace fsdp::test {

template <class Check>
void on_each_stream(Check check) {
  for (const CpuStreams kind : {CpuStreams::kInline, CpuStreams::kThreaded}) {
    CAPTURE(static_cast<int>(kind));
    const auto stream = make_cpu_stream(kind, "kernels");
    check(static_cast<Stream&>(*stream));
    stream->synchronize();
  }
}

}  // namespace fsdp::test

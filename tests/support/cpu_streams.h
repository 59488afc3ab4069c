// The two kinds of CPU streams, for tests that run on both.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runtime/cpu/cpu_stream.h"

namespace fsdp::testing {

enum class CpuStreams { kInline, kThreaded };

inline std::unique_ptr<Stream> make_cpu_stream(CpuStreams kind, std::string name) {
  return cpu_device().make_stream(
      {.name = std::move(name), .runs_beside = kind == CpuStreams::kThreaded});
}

}  // namespace fsdp::testing

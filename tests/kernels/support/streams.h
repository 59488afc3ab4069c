// Makes the streams on which kernels are tested. They are the host's streams. In another program
// (tests/kernels_simulated), kernels on these streams run on a simulated GPU.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "runtime/device.h"

namespace fsdp::test {

const Device& kernel_device();

// Returns an inline stream.
inline std::unique_ptr<Stream> make_stream(std::string name) {
  return kernel_device().make_stream({.name = std::move(name), .runs_beside = false});
}

// Runs a check on every kind of stream.
template <class Check>
void on_each_stream(Check check) {
  for (const bool runs_beside : {false, true}) {
    CAPTURE(runs_beside);
    const auto stream =
        kernel_device().make_stream({.name = "kernels", .runs_beside = runs_beside});
    check(static_cast<Stream&>(*stream));
    stream->synchronize();
  }
}

}  // namespace fsdp::test

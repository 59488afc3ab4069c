// The main function of tests that need this machine's GPU. If there is none, it prints the reason
// and returns 77.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "runtime/open_cuda.h"

int main(int count, char** arguments) {
  const fsdp::CudaDevices& devices = fsdp::cuda_devices();
  if (devices.count == 0) {
    std::printf("not run: %s\n", devices.why_none.c_str());
    return 77;
  }
  return doctest::Context(count, arguments).run();
}

// Calls of the CUDA runtime that are made to fail.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::testing::sim {

// True: no call on the device succeeds any more.
bool is_sticky(cudaError_t code);

// Calls are counted from 1, by name and together. Launches are "cudaLaunchKernel", whatever nvcc's
// code calls. Those that only tell of errors (cudaGetLastError, …) count by name alone, and never
// fail.
class FaultScript {
 public:
  // The n-th call from now on. It does nothing and returns `code`; cudaSuccess: it is left out.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  // Asked in the calling thread before each call that no number names; what it returns the call
  // returns. It must not call the runtime.
  using Choice = std::function<std::optional<cudaError_t>(std::string_view name)>;
  void choose(Choice choice) { choice_ = std::move(choice); }

  void count(std::string_view name);
  // Counts the call; what it has to return instead of doing its work, if the script says so.
  std::optional<cudaError_t> next(std::string_view name);

  int64_t calls(std::string_view name) const;
  int64_t all_calls() const { return all_; }

 private:
  struct Fault {
    std::string name;  // empty: any
    int64_t at = 0;    // the call's number
    cudaError_t code = cudaSuccess;
  };
  std::vector<Fault> faults_;
  Choice choice_;
  std::map<std::string, int64_t, std::less<>> calls_;
  int64_t all_ = 0;
};

}  // namespace fsdp::testing::sim

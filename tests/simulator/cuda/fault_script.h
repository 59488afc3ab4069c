// A script that makes calls of the CUDA runtime fail.
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

// Returns true if no call on the device succeeds after this error.
bool is_sticky(cudaError_t code);

// Counts calls from 1, both by name and in total. Every launch counts as "cudaLaunchKernel",
// although nvcc's code may call another function. Calls that only report errors (cudaGetLastError,
// …) count only by name, and never fail.
class FaultScript {
 public:
  // Makes the n-th call from now on fail: it does nothing and returns `code`. If `code` is
  // cudaSuccess, the call is silently skipped.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  // A function that is called in the calling thread before each call that `fail` did not select. If
  // it returns a code, the call returns this code without effect. It must not call the runtime.
  using Choice = std::function<std::optional<cudaError_t>(std::string_view name)>;
  void choose(Choice choice) { choice_ = std::move(choice); }

  void count(std::string_view name);
  // Counts the call. Returns the code that the script chooses. If it returns none, the call must do
  // its work.
  std::optional<cudaError_t> next(std::string_view name);

  int64_t calls(std::string_view name) const;
  int64_t all_calls() const { return all_; }

 private:
  struct Fault {
    std::string name;  // empty: any
    int64_t at = 0;    // number of the call that fails
    cudaError_t code = cudaSuccess;
  };
  std::vector<Fault> faults_;
  Choice choice_;
  std::map<std::string, int64_t, std::less<>> calls_;
  int64_t all_ = 0;
};

}  // namespace fsdp::testing::sim

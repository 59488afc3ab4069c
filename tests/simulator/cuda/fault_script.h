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

// Counts calls from 1, by name and together. Every launch counts as "cudaLaunchKernel", whichever
// function nvcc's code calls. Calls that only report errors (cudaGetLastError, …) count by name
// only, and never fail.
class FaultScript {
 public:
  // Lets the n-th call from now on fail: it does nothing and returns `code`; cudaSuccess leaves the
  // call out.
  void fail(std::string_view name, int64_t n, cudaError_t code);
  void fail_any(int64_t n, cudaError_t code);
  // A function that is called in the calling thread before each call that no number selects. The
  // call returns its result, if there is one. It must not call the runtime.
  using Choice = std::function<std::optional<cudaError_t>(std::string_view name)>;
  void choose(Choice choice) { choice_ = std::move(choice); }

  void count(std::string_view name);
  // Counts the call. Returns the code that the script chooses; none: the call does its work.
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

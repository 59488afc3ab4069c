// Operators that have a kernel for the CPU and none for tensors without memory.
#pragma once

#include <string>
#include <vector>

namespace fsdp {

// [Note: operators run on zeros] Such an operator runs on the CPU instead, on zeros of the same
// shapes, and its results lose their memory: shapes, strides and dtypes are the CPU's own, and so
// is the memory that it needs while it runs, which is counted. One whose results' shapes depend on
// values cannot be planned, nor one of more than kLargestProbe bytes: it throws, with its name.
inline constexpr long long kLargestProbe = 256LL << 20;

// For every operator that LibTorch knows by now; afterwards they throw as before outside of an
// OperatorProbes' life. Once a process.
void add_operator_probes();

// While it lives, the calling thread may run such operators.
class OperatorProbes {
 public:
  OperatorProbes();
  ~OperatorProbes();
  OperatorProbes(const OperatorProbes&) = delete;
  OperatorProbes& operator=(const OperatorProbes&) = delete;

  // One was run in this thread. Requires: one lives.
  static void note(const std::string& name);
  // The operators that were run, by name, each once.
  const std::vector<std::string>& run() const { return run_; }

 private:
  std::vector<std::string> run_;
  OperatorProbes* before_;
};

}  // namespace fsdp

// Runs operators that have a kernel for the CPU and none for meta tensors.
#pragma once

#include <string>
#include <vector>

namespace fsdp {

// [Note: operators run on zeros] Such an operator runs on the CPU, on zeros of the same shapes, and
// its results become meta tensors. So their shapes, strides and dtypes are the CPU's, and so is the
// counted scratch. An operator throws with its name if the shapes of its results depend on values,
// or if its arguments have more than kLargestProbe bytes.
inline constexpr long long kLargestProbe = 256LL << 20;

// Registers a probe for every operator that is registered by now. Outside of the life of an
// OperatorProbes these operators throw as before. Call it once in a process.
void add_operator_probes();

// A scope in which the calling thread may run such operators.
class OperatorProbes {
 public:
  OperatorProbes();
  ~OperatorProbes();
  OperatorProbes(const OperatorProbes&) = delete;
  OperatorProbes& operator=(const OperatorProbes&) = delete;

  // Records that this thread ran the operator. Requires: an OperatorProbes lives in this thread.
  static void note(const std::string& name);
  // Returns the names of the operators that were run, each once.
  const std::vector<std::string>& run() const { return run_; }

 private:
  std::vector<std::string> run_;
  OperatorProbes* before_;
};

}  // namespace fsdp

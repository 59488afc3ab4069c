// Runs operators that have a CPU kernel but no meta kernel.
#pragma once

#include <string>
#include <vector>

namespace fsdp {

// [Note: operators run on zeros] An operator without a meta kernel runs on the CPU, on zeros of the
// same shapes, and its results are converted to meta tensors. So the results have the shapes,
// strides and dtypes of the CPU, and the CPU's scratch is counted. The call throws an error, which
// names the operator, if the shapes of the results depend on values, or if the arguments have more
// than kLargestProbe bytes.
inline constexpr long long kLargestProbe = 256LL << 20;

// Registers a probe for every operator that is registered at the time of the call. A probed
// operator still throws in a thread without an OperatorProbes object. Call this function once in a
// process.
void add_operator_probes();

// A scope in which the calling thread may run operators on zeros.
class OperatorProbes {
 public:
  OperatorProbes();
  ~OperatorProbes();
  OperatorProbes(const OperatorProbes&) = delete;
  OperatorProbes& operator=(const OperatorProbes&) = delete;

  // Records that this thread ran the operator on zeros. Requires: this thread has an OperatorProbes
  // object.
  static void note(const std::string& name);
  // Returns the names of the operators that ran on zeros in this scope, without repetitions.
  const std::vector<std::string>& run() const { return run_; }

 private:
  std::vector<std::string> run_;
  OperatorProbes* before_;
};

}  // namespace fsdp

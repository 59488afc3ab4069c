// A short training on one simulated GPU in which one call of the CUDA runtime fails.
#pragma once

#include <cuda_runtime_api.h>
#include <fsdp/options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/run_ranks.h"

namespace fsdp::testing {

// The phase of a rank's training.
enum class Stage : uint8_t {
  kNone,          // outside the library: calls are not counted
  kConstruction,  // construction of engine and optimizer
  kFirstStep,     // forward, backward, clipping, the optimizer's step: slots are allocated
  kSteadyStep,    // the same, once memory follows the plan
  kBetween,       // gather, write and read of whole parameters between steps
  kEnd,           // destruction of optimizer and engine
};
std::string_view name_of(Stage stage);

// A call of the CUDA runtime. A site is a line of code together with one chain of callers.
struct CudaCall {
  int rank = 0;
  Stage stage = Stage::kNone;
  std::string name;
  uint64_t site = 0, line = 0;    // hash of all callers; hash of the nearest callers
  int64_t nth = 0;                // number of the call at its site, rank and stage, from 1
  std::string event{};            // the engine's last event before the call, as "reduce"
  std::string subject{};          // unit of this event
  bool precedes_release = false;  // true if the rank's next call releases a resource

  bool is(const CudaCall& other) const {
    return rank == other.rank && stage == other.stage && site == other.site && nth == other.nth;
  }
};

// Returns true if the call of this name releases a resource.
bool is_release(std::string_view name);

struct Fault {
  CudaCall call;
  cudaError_t code = cudaSuccess;
};

struct FaultyTraining {
  int world = 1;
  Options options{};
  bool is_traced = false;
};

struct FaultyResult {
  std::vector<CudaCall> calls;
  std::optional<CudaCall> failed;          // the call that failed; none: the fault did not happen
  std::vector<std::exception_ptr> thrown;  // by rank
  // The objects that still exist on the GPU after everything was destroyed.
  std::vector<std::string> left;
  std::vector<std::string> reports;  // the GPU's reports
};

// Trains a small graph of units on thread ranks. If `fault` is set, the call that it names fails.
FaultyResult train_with(const FaultyTraining& training, const std::optional<Fault>& fault = {});

}  // namespace fsdp::testing

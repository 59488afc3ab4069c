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

// The phase of a training in which a rank is.
enum class Stage : uint8_t {
  kNone,          // none of the library's: calls are not counted
  kConstruction,  // construction of engine and optimizer
  kFirstStep,     // forward, backward, clipping, the optimizer's step: slots are allocated
  kSteadyStep,    // the same, once memory follows the plan
  kBetween,       // whole parameters gathered, written and read, between steps
  kEnd,           // destruction of optimizer and engine
};
std::string_view name_of(Stage stage);

// A call of the runtime. A site is a line of code, reached through one chain of callers.
struct CudaCall {
  int rank = 0;
  Stage stage = Stage::kNone;
  std::string name;
  uint64_t site = 0, line = 0;  // hash of all callers; of the nearest ones
  int64_t nth = 0;              // counts calls of its site, rank and stage, from 1
  std::string event{};          // the engine's last one: "reduce"
  std::string subject{};        // its unit

  bool is(const CudaCall& other) const {
    return rank == other.rank && stage == other.stage && site == other.site && nth == other.nth;
  }
};

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
  std::optional<CudaCall> failed;          // the fault's call; none: it did not happen
  std::vector<std::exception_ptr> thrown;  // by rank
  // Objects on the GPU after everything was destroyed.
  std::vector<std::string> left;
  std::vector<std::string> reports;  // the GPU's reports
};

// Trains a small graph of units on thread ranks; with `fault`, that call fails.
FaultyResult train_with(const FaultyTraining& training, const std::optional<Fault>& fault = {});

}  // namespace fsdp::testing

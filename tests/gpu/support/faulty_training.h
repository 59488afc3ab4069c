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

// What a rank is doing.
enum class Stage : uint8_t {
  kNone,          // nothing of ours: calls are not counted
  kConstruction,  // of engine and optimizer
  kFirstStep,     // forward, backward, clipping, the optimizer's step: slots are allocated
  kSteadyStep,    // the same, once memory is as planned
  kBetween,       // whole parameters gathered, written and read, between steps
  kEnd,           // optimizer and engine go
};
std::string_view name_of(Stage stage);

// One call of the runtime. A site is a line of code as reached through one chain of callers.
struct CudaCall {
  int rank = 0;
  Stage stage = Stage::kNone;
  std::string name;
  uint64_t site = 0, line = 0;  // of all callers, of the nearest ones
  int64_t nth = 0;              // of its site, rank and stage, from 1
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
  std::optional<CudaCall> failed;          // the fault's; none: it did not come
  std::vector<std::exception_ptr> thrown;  // by rank
  // On the GPU, when all is gone that was made.
  std::vector<std::string> left;
  std::vector<std::string> reports;  // of the GPU
};

// Thread ranks of a small graph of units.
FaultyResult train_with(const FaultyTraining& training, const std::optional<Fault>& fault = {});

}  // namespace fsdp::testing

// Finds each of a model's parameters among the tensors of files.
#pragma once

#include <fsdp/checkpoint.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/weights_file.h"

namespace fsdp {

// What load_weights reads. All live as long as what is matched.
struct WeightsFiles {
  std::vector<const WeightsFile*> files;
  const WeightsFile* instead = nullptr;  // LoadOptions::instead
};

struct WeightSource {
  const WeightsFile* file = nullptr;
  const MappedTensor* tensor = nullptr;
};

struct ExpectedTensor {
  std::string fqn;
  std::vector<int64_t> shape;
};

struct MatchedWeights {
  // One for each expected tensor, in their order; empty only where it may be missing.
  std::vector<std::optional<WeightSource>> sources;
  LoadReport report;
};

// By the rules of LoadOptions, from integers and names alone: all ranks get the same answer.
// Errors: as load_weights, but for values, which are not looked at.
MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options);

}  // namespace fsdp

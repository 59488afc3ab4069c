// Finds each of a model's parameters and buffers among the tensors of files.
#pragma once

#include <fsdp/checkpoint.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/weights_file.h"

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
  // Other names under which the model has it (tied weights).
  std::vector<std::string> aliases{};
  // Of a buffer, which no file needs to have; of parameters all floating types are one.
  std::optional<StoredDType> buffer{};
};

struct MatchedWeights {
  // One for each expected tensor, in their order; empty only where it may be missing.
  std::vector<std::optional<WeightSource>> sources;
  // Further sources of an expected tensor, by its index, whose values must be the same.
  struct Copy {
    size_t of = 0;
    WeightSource source;
  };
  std::vector<Copy> copies;
  LoadReport report;
};

// By the rules of LoadOptions, from integers and names alone: all ranks get the same answer.
// Errors: as load_weights, but for values, which are not looked at.
MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options);

// The refusal of copies whose values differ. Requires: `copy` is of matched.copies.
[[noreturn]] void refuse_copy(const MatchedWeights& matched, const MatchedWeights::Copy& copy);

}  // namespace fsdp

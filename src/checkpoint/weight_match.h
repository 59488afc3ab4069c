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

// The files of one load_weights. They live as long as the match.
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
  // Other names of the same tensor in the model (tied weights).
  std::vector<std::string> aliases{};
  // A buffer's type; no file needs to have it. Empty for a parameter, which any floating type fits.
  std::optional<StoredDType> buffer{};
};

struct MatchedWeights {
  // One per expected tensor, in their order; empty only for one that may be missing.
  std::vector<std::optional<WeightSource>> sources;
  // Further sources of an expected tensor, by its index. Their values must be equal.
  struct Copy {
    size_t of = 0;
    WeightSource source;
  };
  std::vector<Copy> copies;
  LoadReport report;
};

// Matches by the rules of LoadOptions, from names, shapes and types alone: all ranks get the same
// result.
// Errors: as load_weights, except those of values, which are not read.
MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options);

// Throws the refusal of a copy whose values differ. Requires: `copy` is one of matched.copies.
[[noreturn]] void refuse_copy(const MatchedWeights& matched, const MatchedWeights::Copy& copy);

}  // namespace fsdp

// Finds each parameter and buffer of a model among the tensors of files.
#pragma once

#include <fsdp/checkpoint.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/weights_file.h"

namespace fsdp {

// The files of one load_weights. The files must outlive the match.
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
  // Other names in the model of the same tensor (tied weights).
  std::vector<std::string> aliases{};
  // The type of a buffer. A buffer may be missing from all files. Empty for a parameter, because a
  // parameter can be loaded from any floating type.
  std::optional<StoredDType> buffer{};
};

struct MatchedWeights {
  // One source per expected tensor, in the same order. A source is empty only if its tensor may be
  // missing.
  std::vector<std::optional<WeightSource>> sources;
  // Further sources of an expected tensor, which has the index `of`. The values of all its sources
  // must be equal.
  struct Copy {
    size_t of = 0;
    WeightSource source;
  };
  std::vector<Copy> copies;
  LoadReport report;
};

// Matches by the rules of LoadOptions. Uses only names, shapes and types, so all ranks get the same
// result.
// Errors: those of load_weights, except errors about values, because values are not read.
MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options);

// Throws the error for a copy whose values differ. Requires: `copy` is one of matched.copies.
[[noreturn]] void refuse_copy(const MatchedWeights& matched, const MatchedWeights::Copy& copy);

}  // namespace fsdp

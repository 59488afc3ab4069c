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

// The files that one call of load_weights reads. The files must outlive the match.
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
  // The other FQNs that the model has for the same tensor (tied weights).
  std::vector<std::string> aliases{};
  // The type, if the tensor is a buffer. A buffer may be missing from all files. For a parameter
  // the field is empty, because a parameter can be loaded from any floating type.
  std::optional<StoredDType> buffer{};
};

struct MatchedWeights {
  // One source per expected tensor, in the same order. A source is empty only if its tensor may be
  // missing.
  std::vector<std::optional<WeightSource>> sources;
  // A further source of the expected tensor with index `of`. All sources of a tensor must have
  // equal values.
  struct Copy {
    size_t of = 0;
    WeightSource source;
  };
  std::vector<Copy> copies;
  LoadReport report;
};

// Finds the sources of all expected tensors by the rules of LoadOptions. Uses only names, shapes
// and types, so all ranks get the same result.
// Errors: those of load_weights, except errors about values, because values are not read.
MatchedWeights match_weights(const WeightsFiles& files, std::span<const ExpectedTensor> expected,
                             const LoadOptions& options);

// Throws the error for a copy whose values differ. Requires: `copy` is one of matched.copies.
[[noreturn]] void refuse_copy(const MatchedWeights& matched, const MatchedWeights::Copy& copy);

}  // namespace fsdp

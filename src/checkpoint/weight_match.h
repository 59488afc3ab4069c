// Finds each of a model's parameters among the tensors of files.
#pragma once

#include <fsdp/checkpoint.h>
#include <fsdp/safetensors_folder.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

struct ExpectedTensor {
  std::string fqn;
  std::vector<int64_t> shape;
};

struct MatchedWeights {
  // One for each expected tensor, in their order; empty only where it may be missing.
  std::vector<std::optional<TensorSource>> sources;
  LoadReport report;
};

// By the rules of LoadOptions, from integers and names alone: all ranks get the same answer.
// Errors: as load_weights, but for values, which are not looked at.
MatchedWeights match_weights(std::span<const SafetensorsFile> files,
                             std::span<const ExpectedTensor> expected, const LoadOptions& options);

}  // namespace fsdp

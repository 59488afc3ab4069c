// A model's buffers against files: which can be filled, and whole values for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

#include "io/weights_file.h"

namespace fsdp {

struct LoadableBuffer {
  std::string fqn;
  at::Tensor buffer;
  std::vector<std::string> aliases;  // other names of the same tensor
};

// Registered buffers that are dense, own each of their elements, and have a type that files have,
// each once, in the order of registration.
std::vector<LoadableBuffer> loadable_buffers(torch::nn::Module& root);

// Empty for types that files do not have.
std::optional<StoredDType> stored_type(at::ScalarType type);

// A copy on the host, as long as what it spans in the file. Requires: stored_type has its type.
at::Tensor read_whole(const WeightsFile& file, const MappedTensor& tensor);

}  // namespace fsdp

// Matches a model's buffers with files, and reads whole values for them.
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

// Returns registered buffers that are dense, own each of their elements, and have a type that files
// have; each once, in the order of registration.
std::vector<LoadableBuffer> loadable_buffers(torch::nn::Module& root);

// Returns the type in a file; empty if files do not have it.
std::optional<StoredDType> stored_type(at::ScalarType type);

// Returns a copy on the host, as long as the tensor's span in the file.
// Requires: its type is one that stored_type returns.
at::Tensor read_whole(const WeightsFile& file, const MappedTensor& tensor);

}  // namespace fsdp

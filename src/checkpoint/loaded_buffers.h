// Finds the buffers of a model that can be loaded, and reads their values from files.
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

// Returns the registered buffers that are dense, own each of their elements, and have a type that
// files can have. Each buffer occurs once, in the order of registration.
std::vector<LoadableBuffer> loadable_buffers(torch::nn::Module& root);

// Returns the type in a file that corresponds to `type`; empty if files cannot have it.
std::optional<StoredDType> stored_type(at::ScalarType type);

// Returns a copy of the tensor on the host. The copy is as long as the tensor's span in the file.
// Requires: the tensor's type is one that stored_type returns.
at::Tensor read_whole(const WeightsFile& file, const MappedTensor& tensor);

}  // namespace fsdp

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

// Returns the registered buffers that are dense, have no two elements in the same memory, and have
// a type that stored_type knows. Each buffer occurs once, in the order of registration.
std::vector<LoadableBuffer> loadable_buffers(torch::nn::Module& root);

// Returns the file's element type that corresponds to `type`, or nothing if no file format has such
// a type.
std::optional<StoredDType> stored_type(at::ScalarType type);

// Returns a copy of the tensor on the host. The copy has the strides of the tensor in the file, so
// it includes any gaps between elements.
// Requires: the tensor's type is one that stored_type returns.
at::Tensor read_whole(const WeightsFile& file, const MappedTensor& tensor);

}  // namespace fsdp

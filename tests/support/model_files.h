// Writes model folders for tests.
#pragma once

#include <fsdp/safetensors.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fsdp {

// Writes a safetensors file whose tensors contain zeros.
void write_zeros(const std::filesystem::path& path, const std::vector<TensorSpec>& specs);

// Returns F32 tensors of shape [2].
std::vector<TensorSpec> small_tensors(const std::vector<std::string>& names);

}  // namespace fsdp

// Makes the beginning of a safetensors file: the size of the header, the header and its padding.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

struct SafetensorsStart {
  std::string bytes;
  std::vector<StoredTensor> tensors;  // in the order of the file
  int64_t file_bytes = 0;
};

// Returns the beginning of a file that has the tensors in the given order. The padding lets the
// tensors begin at a multiple of `alignment` bytes. `path` is used only for messages.
// Errors: InvalidArgument if a name occurs twice or is "__metadata__", if a tensor has no size in
//   bytes, if a text is not UTF-8, or if the header is too large.
SafetensorsStart safetensors_start(std::vector<TensorSpec> specs,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t alignment, const std::filesystem::path& path);

}  // namespace fsdp

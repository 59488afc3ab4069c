#include "io/weights_file.h"

namespace fsdp {

std::vector<int64_t> row_major(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

SafetensorsWeights::SafetensorsWeights(const SafetensorsFile& file) : file_(file) {
  for (const StoredTensor& tensor : file.tensors()) {
    tensors_.push_back({.name = tensor.name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .strides = row_major(tensor.shape),
                        .bytes = file.bytes(tensor)});
  }
}

}  // namespace fsdp

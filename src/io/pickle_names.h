// Lists the names in a pickle that the parser understands: storage types, functions that make
// tensors and containers, TorchScript classes. The parser calls none of them.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// Returns the element type of a storage class, such as "torch.FloatStorage" or
// "torch.storage.UntypedStorage" (bytes). Returns nothing for types that weights do not have, such
// as quantised types.
std::optional<StoredDType> dtype_of_storage(std::string_view name);
// Returns the type of "torch.float8_e4m3fn" and of other types without a storage class, or nothing.
std::optional<StoredDType> dtype_of_name(std::string_view name);

enum class PickleFunction : uint8_t {
  kDict,
  kTensor,
  kTensorV2,
  kTensorV3,
  kParameter,
  kParameterWithState,
  kFromType,
  kFirstArgument,
};
std::optional<PickleFunction> pickle_function(std::string_view name);

// Returns true for torch.Tensor, Parameter and Buffer. An instance of these classes has the values
// of the tensor from which it is made.
bool is_tensor_class(std::string_view name);
// Returns true for storage types, and for functions of torch that make a tensor but are not
// supported.
bool makes_tensor(std::string_view name);
// Returns true for classes of TorchScript, which torch::save of a module also writes.
bool is_script_class(std::string_view name);
// Returns true for functions that act on the process, on its files or on other values of the
// pickle.
bool runs_code(std::string_view name);

}  // namespace fsdp

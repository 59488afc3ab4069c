// The names in a pickle that the parser understands: storage types, functions that make tensors and
// containers, TorchScript classes. None of them is called.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// Returns the type of "torch.FloatStorage", "torch.storage.UntypedStorage" (bytes), …; empty for
// types that weights do not have, such as quantised ones.
std::optional<StoredDType> dtype_of_storage(std::string_view name);
// Returns the type of "torch.float8_e4m3fn" and others without a storage class; empty for all else.
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

// Returns true if a tensor becomes an instance of the class without a change of its values.
bool is_tensor_class(std::string_view name);
// Returns true for other functions of torch that make a tensor, and for storage types.
bool makes_tensor(std::string_view name);
// Returns true for classes of TorchScript, which torch::save of a module writes, too.
bool is_script_class(std::string_view name);
// Returns true for functions that act on the process, its files or other values of the pickle.
bool runs_code(std::string_view name);

}  // namespace fsdp

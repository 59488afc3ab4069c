// What a pickle may name: types of storages, functions that make tensors and containers, classes of
// TorchScript. Nothing of it is called; a parser does what it stands for.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// "torch.FloatStorage", "torch.storage.UntypedStorage" (bytes). Empty for types that no weights
// have, quantised ones among them.
std::optional<StoredDType> dtype_of_storage(std::string_view name);
// "torch.float8_e4m3fn".
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

// Of a class, of which a tensor is made without a change of its values.
bool is_tensor_class(std::string_view name);
// Another function of torch's that makes a tensor, or a type of storages.
bool makes_tensor(std::string_view name);
// Also of torch::save of a module.
bool is_script_class(std::string_view name);
// Of a module whose functions act on the process, its files or other values of the pickle.
bool runs_code(std::string_view name);

}  // namespace fsdp

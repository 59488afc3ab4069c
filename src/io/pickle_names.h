// What a pickle may name: types of storages, functions that make tensors and containers, classes of
// TorchScript. Nothing of it is called; a parser does what it stands for.
#pragma once

#include <fsdp/safetensors.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace fsdp {

// "torch.FloatStorage". Empty for types that no weights have, quantised ones among them.
std::optional<StoredDType> dtype_of_storage(std::string_view name);

enum class PickleFunction : uint8_t { kDict, kTensor, kParameter, kFirstArgument };
std::optional<PickleFunction> pickle_function(std::string_view name);

// Also of torch::save of a module.
bool is_script_class(std::string_view name);

}  // namespace fsdp

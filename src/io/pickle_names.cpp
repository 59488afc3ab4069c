#include "io/pickle_names.h"

#include <algorithm>
#include <array>

namespace fsdp {
namespace {

struct StorageType {
  std::string_view name;
  StoredDType dtype;
};
constexpr std::array kStorageTypes{
    StorageType{"torch.FloatStorage", StoredDType::kF32},
    StorageType{"torch.HalfStorage", StoredDType::kF16},
    StorageType{"torch.BFloat16Storage", StoredDType::kBF16},
    StorageType{"torch.DoubleStorage", StoredDType::kF64},
    StorageType{"torch.LongStorage", StoredDType::kI64},
    StorageType{"torch.IntStorage", StoredDType::kI32},
    StorageType{"torch.ShortStorage", StoredDType::kI16},
    StorageType{"torch.CharStorage", StoredDType::kI8},
    StorageType{"torch.ByteStorage", StoredDType::kU8},
    StorageType{"torch.BoolStorage", StoredDType::kBool},
    StorageType{"torch.ComplexFloatStorage", StoredDType::kC64},
    StorageType{"torch.storage.UntypedStorage", StoredDType::kU8},
};
// The element types for which PyTorch has no storage class.
constexpr std::array kTypes{
    StorageType{"torch.uint16", StoredDType::kU16},
    StorageType{"torch.uint32", StoredDType::kU32},
    StorageType{"torch.uint64", StoredDType::kU64},
    StorageType{"torch.float8_e4m3fn", StoredDType::kF8E4M3},
    StorageType{"torch.float8_e4m3fnuz", StoredDType::kF8E4M3Fnuz},
    StorageType{"torch.float8_e5m2", StoredDType::kF8E5M2},
    StorageType{"torch.float8_e5m2fnuz", StoredDType::kF8E5M2Fnuz},
    StorageType{"torch.float8_e8m0fnu", StoredDType::kF8E8M0},
};

constexpr std::array<std::string_view, 3> kTensorClasses{
    "torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"};

// Modules and builtins that act on the process, on files or on other values. Python 3 pickles write
// builtins as __builtin__.
constexpr std::array<std::string_view, 17> kActingModules{
    "os.",        "posix.",     "nt.",      "sys.",     "subprocess.", "shutil.",
    "socket.",    "importlib.", "runpy.",   "pty.",     "ctypes.",     "operator.",
    "_operator.", "pickle.",    "_pickle.", "marshal.", "webbrowser."};
constexpr std::array<std::string_view, 10> kActingBuiltins{
    "eval", "exec",    "execfile", "compile", "__import__",
    "open", "setattr", "delattr",  "input",   "breakpoint"};

struct NamedFunction {
  std::string_view name;
  PickleFunction function;
};
constexpr std::array kFunctions{
    NamedFunction{"collections.OrderedDict", PickleFunction::kDict},
    NamedFunction{"torch._utils._rebuild_tensor", PickleFunction::kTensor},
    NamedFunction{"torch._utils._rebuild_tensor_v2", PickleFunction::kTensorV2},
    NamedFunction{"torch._utils._rebuild_tensor_v3", PickleFunction::kTensorV3},
    NamedFunction{"torch._utils._rebuild_parameter", PickleFunction::kParameter},
    NamedFunction{"torch._utils._rebuild_parameter_with_state",
                  PickleFunction::kParameterWithState},
    NamedFunction{"torch._tensor._rebuild_from_type_v2", PickleFunction::kFromType},
    NamedFunction{"torch.Size", PickleFunction::kFirstArgument},
    NamedFunction{"torch.device", PickleFunction::kFirstArgument},
    NamedFunction{"torch.jit._pickle.restore_type_tag", PickleFunction::kFirstArgument},
    NamedFunction{"torch.jit._pickle.build_intlist", PickleFunction::kFirstArgument},
    NamedFunction{"torch.jit._pickle.build_doublelist", PickleFunction::kFirstArgument},
    NamedFunction{"torch.jit._pickle.build_boollist", PickleFunction::kFirstArgument},
    NamedFunction{"torch.jit._pickle.build_tensorlist", PickleFunction::kFirstArgument},
};

}  // namespace

std::optional<StoredDType> dtype_of_storage(std::string_view name) {
  const auto at = std::ranges::find(kStorageTypes, name, &StorageType::name);
  return at != kStorageTypes.end() ? std::optional(at->dtype) : std::nullopt;
}

std::optional<PickleFunction> pickle_function(std::string_view name) {
  const auto at = std::ranges::find(kFunctions, name, &NamedFunction::name);
  return at != kFunctions.end() ? std::optional(at->function) : std::nullopt;
}

std::optional<StoredDType> dtype_of_name(std::string_view name) {
  const auto at = std::ranges::find(kTypes, name, &StorageType::name);
  return at != kTypes.end() ? std::optional(at->dtype) : std::nullopt;
}

bool is_tensor_class(std::string_view name) {
  return std::ranges::find(kTensorClasses, name) != kTensorClasses.end();
}

// Compares only the beginning of the name, so that functions which are not listed above also count.
bool makes_tensor(std::string_view name) {
  return name.starts_with("torch._utils._rebuild_") ||
         name.starts_with("torch._tensor._rebuild_") ||
         (name.starts_with("torch.") && name.ends_with("Storage"));
}

bool runs_code(std::string_view name) {
  for (const std::string_view builtins : {"__builtin__.", "builtins."}) {
    if (!name.starts_with(builtins)) continue;
    name.remove_prefix(builtins.size());
    return std::ranges::find(kActingBuiltins, name) != kActingBuiltins.end();
  }
  return std::ranges::any_of(kActingModules,
                             [&](std::string_view module) { return name.starts_with(module); });
}

bool is_script_class(std::string_view name) { return name.starts_with("__torch__."); }

}  // namespace fsdp

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
};

struct NamedFunction {
  std::string_view name;
  PickleFunction function;
};
constexpr std::array kFunctions{
    NamedFunction{"collections.OrderedDict", PickleFunction::kDict},
    NamedFunction{"torch._utils._rebuild_tensor", PickleFunction::kTensor},
    NamedFunction{"torch._utils._rebuild_tensor_v2", PickleFunction::kTensor},
    NamedFunction{"torch._utils._rebuild_parameter", PickleFunction::kParameter},
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

bool is_script_class(std::string_view name) { return name.starts_with("__torch__."); }

}  // namespace fsdp

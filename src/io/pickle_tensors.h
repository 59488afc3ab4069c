// Builds tensors from the arguments of the functions with which torch.save writes them.
#pragma once

#include <memory>
#include <string>

#include "io/pickle.h"
#include "io/pickle_names.h"

namespace fsdp {

// A tensor, or the reason why there is none.
struct RebuiltTensor {
  std::unique_ptr<PickledTensor> tensor;
  std::string unread;  // the reason: PickleValue::text of a kUnreadTensor
};

// Thrown for arguments that the function does not have; the parser adds the place.
struct WrongArguments {
  std::string why;
  std::string hint{};
};

// Returns the tensor that `function` would make.
// Requires: `function` is one that makes tensors; `arguments` is a kSequence.
RebuiltTensor rebuild_tensor(PickleFunction function, const PickleValue& arguments);

// Returns the storage that ('storage', torch.FloatStorage, key, device, numel) names.
RebuiltTensor rebuild_storage(const PickleValue& id);

}  // namespace fsdp

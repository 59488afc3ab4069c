// Builds tensors from the arguments of the functions that torch.save writes for them.
#pragma once

#include <memory>
#include <string>

#include "io/pickle.h"
#include "io/pickle_names.h"

namespace fsdp {

// A tensor, or the reason why it cannot be read.
struct RebuiltTensor {
  std::unique_ptr<PickledTensor> tensor;
  std::string unread;  // the reason, for PickleValue::text of a kUnreadTensor
};

// An exception for arguments that do not fit the function. The parser adds the position.
struct WrongArguments {
  std::string why;
  std::string hint{};
};

// Returns the tensor that `function` would make.
// Requires: `function` makes tensors; `arguments` is a kSequence.
RebuiltTensor rebuild_tensor(PickleFunction function, const PickleValue& arguments);

// Returns the storage that ('storage', torch.FloatStorage, key, device, numel) describes.
RebuiltTensor rebuild_storage(const PickleValue& id);

}  // namespace fsdp

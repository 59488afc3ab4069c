// OutOfMemory: thrown by a device without free memory and by a meter at its limit, for callers that
// can free some and try again.
#pragma once

#include "fsdp/error.h"

namespace fsdp {

// A DeviceError, as which it passes callers that do not catch it.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace fsdp

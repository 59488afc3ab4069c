// OutOfMemory: the error of a device without free memory, or of a memory meter at its limit.
// Callers can free memory and try again.
#pragma once

#include "fsdp/error.h"

namespace fsdp {

// A DeviceError, so callers without a handler for OutOfMemory treat it as one.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace fsdp

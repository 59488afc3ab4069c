// OutOfMemory: the error of a device without free memory, or of a MemoryMeter whose limit is
// reached. Callers can free memory and try again.
#pragma once

#include "fsdp/error.h"

namespace fsdp {

// The error class. It derives from DeviceError, so a handler of DeviceError also catches it.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace fsdp

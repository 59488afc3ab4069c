// What a device throws that has no memory left, and a meter beyond its limit, for those who can
// give some back.
#pragma once

#include "fsdp/error.h"

namespace fsdp {

// It passes through as the DeviceError that it is.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

}  // namespace fsdp

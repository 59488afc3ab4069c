// Names the buffer behind an error of LibTorch about types.
#pragma once

#include <c10/util/Exception.h>

#include "engine/engine_unit.h"

namespace fsdp {

// Throws InvalidArgument if LibTorch refused an operator in the unit's forward because of its
// tensors' types, and the unit has floating buffers of another type than it computes in. The error
// names the buffers, both types and the fix: param_dtype casts parameters and inputs, never
// buffers. Otherwise does nothing.
void refuse_buffers_of_other_type(const c10::Error& error, const EngineUnit& unit);

}  // namespace fsdp

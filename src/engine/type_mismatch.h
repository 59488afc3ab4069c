// Finds the buffer that caused an error of LibTorch about mismatched types.
#pragma once

#include <c10/util/Exception.h>

#include "engine/engine_unit.h"

namespace fsdp {

// Throws InvalidArgument if two conditions hold: LibTorch refused an operator in the unit's forward
// because of the types of its tensors, and the unit has floating buffers of another type than its
// compute type. The error names the buffers, both types and the fix (param_dtype casts parameters
// and inputs, but never buffers). Otherwise does nothing.
void refuse_buffers_of_other_type(const c10::Error& error, const EngineUnit& unit);

}  // namespace fsdp

// Writes trace files for the layers above.
#pragma once

#include <filesystem>

#include "engine/engine_parts.h"

namespace fsdp {

// Writes the records of this rank since a Trace of its engine began, without those of other ranks.
// Not collective. Errors: those of Trace::write.
void write_trace_of_rank(EngineParts& engine, const std::filesystem::path& file);

}  // namespace fsdp

// The readers of io as fuzz targets: safetensors, header, index, json, pickle, archive and
// manifest.
#pragma once

#include <span>
#include <string_view>

#include "support/byte_reader.h"

namespace fsdp {

std::span<const ByteReader> byte_readers();
// Returns a reader. `name` must be one of the names above.
const ByteReader& byte_reader(std::string_view name);

}  // namespace fsdp

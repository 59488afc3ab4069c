// The readers of io as fuzz targets: safetensors, header, index, json, pickle, archive.
#pragma once

#include <span>
#include <string_view>

#include "support/byte_reader.h"

namespace fsdp {

std::span<const ByteReader> byte_readers();
// Requires one of these names.
const ByteReader& byte_reader(std::string_view name);

}  // namespace fsdp

// Declares the example's readers as fuzz targets: config, squad, vocabulary, tokenizer_json and
// tokenizer.
#pragma once

#include <span>
#include <string_view>

#include "support/byte_reader.h"

namespace bert_qa {

std::span<const fsdp::ByteReader> byte_readers();
// Returns a reader. Requires: `name` is one of the names above.
const fsdp::ByteReader& byte_reader(std::string_view name);

}  // namespace bert_qa

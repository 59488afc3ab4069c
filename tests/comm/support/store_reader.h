// The server's reader of requests as a fuzz target: "store" for bytes of a client that has the
// token, "stranger" for bytes before that.
#pragma once

#include <string_view>

#include "support/byte_reader.h"

namespace fsdp::testing {

// Returns a reader. `name` must be one of the names above.
const ByteReader& byte_reader(std::string_view name);
// Reads the bytes as a stream of requests, and serves them. Checks that each reply can be read and
// that the keys have the values that were set. Errors: Finding.
Verdict read_store_stream(std::string_view bytes);

}  // namespace fsdp::testing

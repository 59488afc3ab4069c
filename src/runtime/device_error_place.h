// Where a device failed, in the user's terms.
#pragma once

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// Runs `body`. A DeviceError that leaves it says `where()` ("reduce of unit 'layers.0'"), unless
// it says where already: of places within each other the innermost counts. Free where nothing
// fails.
template <class Where, class Body>
decltype(auto) with_place(const Where& where, const Body& body) {
  try {
    return body();
  } catch (const DeviceError& error) {
    if (!error.text().where.empty()) throw;
    ErrorText text = error.text();
    text.where = where();
    throw DeviceError(std::move(text));
  }
}

}  // namespace fsdp

// with_place: adds the place of a failure, in the user's terms, to a DeviceError.
#pragma once

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// Runs `body`. A DeviceError that leaves it without a place gets `where()` ("reduce of unit
// 'layers.0'"): in nested calls the innermost place counts. It costs nothing unless an error is
// thrown.
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

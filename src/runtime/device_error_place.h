// with_place: adds the place of a failure to a DeviceError, in terms that the user knows.
#pragma once

#include <utility>

#include "fsdp/error.h"

namespace fsdp {

// Runs `body`. If `body` throws a DeviceError without a place, adds the place `where()` ("reduce of
// unit 'layers.0'"). So in nested calls the error has the innermost place. `where` is called only
// if an error is thrown.
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

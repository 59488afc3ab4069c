// CodePlace: the position of a call in the source. It replaces std::source_location, which clang 14
// (tools/fuzz) cannot use with libstdc++.
#pragma once

namespace fsdp {

struct CodePlace {
  const char* file = "";
  int line = 0;

  // Returns the position of the call, if the caller omits the arguments. If CodePlace::current() is
  // the default argument of a function, it returns the position of the call of that function.
  static constexpr CodePlace current(const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace fsdp

// CodePlace: the place of a call in the source. It replaces std::source_location, which clang 14
// (tools/fuzz) does not find in libstdc++.
#pragma once

namespace fsdp {

struct CodePlace {
  const char* file = "";
  int line = 0;

  // Returns the place of the call that leaves the arguments out. As a default argument it returns
  // the place of the call of the function that has it.
  static constexpr CodePlace current(const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace fsdp

// CodePlace: the position of a call in the source. It replaces std::source_location, because clang
// 14 (tools/fuzz) does not find that in libstdc++.
#pragma once

namespace fsdp {

struct CodePlace {
  const char* file = "";
  int line = 0;

  // Returns the position of the call, if the caller omits the arguments. As a default argument of a
  // function, it returns the position where that function is called.
  static constexpr CodePlace current(const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace fsdp

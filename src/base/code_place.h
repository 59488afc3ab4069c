// Where in the source a call stands. It is std::source_location, which clang 14 (tools/fuzz) does
// not find in libstdc++.
#pragma once

namespace fsdp {

struct CodePlace {
  const char* file = "";
  int line = 0;

  // Of the call that leaves the default arguments out; as a default argument, of its function's.
  static constexpr CodePlace current(const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace fsdp

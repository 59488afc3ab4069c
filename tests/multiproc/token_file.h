// Tokens of jobs on several hosts.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "support/run_process.h"

namespace fsdp::testing {

// A file with a token, in a folder that the destructor removes.
class TokenFile {
 public:
  explicit TokenFile(char content) {
    std::ofstream(path()) << std::string(32, content);
    std::filesystem::permissions(path(), std::filesystem::perms(0600));
  }
  std::string path() const { return folder_.path() + "/token"; }

 private:
  const TemporaryDirectory folder_;
};

// Returns the path of a token file that exists until the program ends.
inline std::string token_file() {
  static const TokenFile file('t');
  return file.path();
}

}  // namespace fsdp::testing
